"""A drafter's entry of the package: its graph, its section of the configuration, what it costs."""

from __future__ import annotations

import onnx_ir as ir

from builder.drafter import Drafter
from builder.drafter_cost import DrafterCost
from builder.family import Target
from builder.option_table import drafter_setting
from builder.options import BuildOptions
from builder.package import GraphPlan
from builder.resolved import Resolved
from builder.runtime_config import session_options
from drafters.checkpoint.config import DSpark
from drafters.checkpoint.names import draft_names
from drafters.graph import graph_io
from drafters.graph.build import build_drafter
from drafters.graph.graph_io import DrafterOptions
from genai_config import runtime
from genai_config.sections import BlockDrafter, Decoder, DrafterInputs, DrafterOutputs
from onnxkit.layers import kv_cache, paged_attention
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.tensor_plan import Disposition, TensorPlan


def drafter_graph(
    drafter: Drafter, target: Target, options: BuildOptions, resolved: Resolved, decoder: GraphPlan
) -> GraphPlan:
    """The drafter's entry of the package, beside that of its target, the ``decoder``.

    Raises:
        ExportError: Tensors are missing, misshapen, of another type, or read by nothing; or the cache has no room.
    """
    asked = DrafterOptions(
        target=resolved.precision,
        context_length=resolved.context_length,
        page_size=resolved.page_size,
        embedding=target.embedding,
        head=target.head,
    )
    model, tensors = plan_drafter(drafter, asked, allow_nonfinite=options.allow_nonfinite)
    assert isinstance(decoder.section, Decoder) and decoder.section.outputs.aux_hidden_states is not None
    section = _section(drafter, options, resolved.context_length, decoder.section.outputs.aux_hidden_states)
    cost = DrafterCost(
        drafter,
        own=tensors.external_bytes,
        shared=tensors.byte_count(Disposition.SHARED),
        target_token=target.token_bytes,
        page_size=resolved.page_size,
        pages=drafter.ring_pages(resolved.context_length, resolved.page_size),
        requests=resolved.max_batch_size or runtime.DEFAULT_BATCH,
    )
    cost.check_blocks(options.num_blocks)
    astray = (f"drafter: {note}" for note in tensors.index_notes())
    notes = (*_notes(drafter, resolved), *astray, *cost.note(resolved.context_length))
    return GraphPlan(drafter.config.kind, section, model, tensors, drafter.checkpoint, notes, tuple(cost.lines()))


def plan_drafter(
    drafter: Drafter, options: DrafterOptions, *, allow_nonfinite: bool = False
) -> tuple[ir.Model, TensorPlan]:
    """The drafter's graph, and what its initializers are made of.

    Raises:
        ExportError: Tensors are missing, misshapen, of another type, or read by nothing.
    """
    model = build_drafter(drafter.config, options)
    names = draft_names(drafter.checkpoint)
    plan = plan_tensors(model.graph, drafter.checkpoint, names, drafter.left_out, allow_nonfinite=allow_nonfinite)
    return model, plan


def _section(drafter: Drafter, options: BuildOptions, context_length: int, taps: str) -> BlockDrafter:
    """The section of a block drafter."""
    config = drafter.config
    return BlockDrafter(
        filename=f"{config.kind}.onnx",
        num_hidden_layers=len(config.layers),
        num_key_value_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        block_size=config.block_size,
        num_draft_tokens=config.num_draft_tokens,
        selector_top_k=config.top_k,
        mask_token_id=config.mask_token_id,
        sliding_window=drafter.window(context_length),
        main_aux_hidden_states=taps,
        aux_hidden_state_layers=config.taps,
        inputs=DrafterInputs(
            aux_hidden_states=graph_io.AUX_HIDDEN_STATES,
            input_ids=graph_io.INPUT_IDS,
            qkv_row_map=graph_io.QKV_ROW_MAP,
            block_row_index=graph_io.BLOCK_ROW_INDEX,
            cumulative_sequence_lengths=paged_attention.CUMULATIVE,
            past_sequence_lengths=paged_attention.PAST_LENGTHS,
            block_table=paged_attention.BLOCK_TABLE,
            attention_metadata=paged_attention.METADATA,
            past_key_names=kv_cache.PAST["key"],
            past_value_names=kv_cache.PAST["value"],
        ),
        outputs=DrafterOutputs(
            candidate_ids=graph_io.CANDIDATE_IDS,
            scores=graph_io.SCORES,
            present_key_names=kv_cache.PRESENT["key"],
            present_value_names=kv_cache.PRESENT["value"],
        ),
        session_options=session_options(options),
    )


def _notes(drafter: Drafter, resolved: Resolved) -> list[str]:
    """What the user should know of the pair."""
    config, used = drafter.config, resolved.max_draft_tokens
    found = []
    if config.block_size < drafter.trained_block and not all(layer.causal for layer in config.layers):
        found.append(
            f"drafter: trained with blocks of {drafter.trained_block} rows, exported with {config.block_size}; where a "
            "block is not causal its rows see fewer masks than in training"
        )
    if used and config.num_draft_tokens > used:
        found.append(
            f"drafter: the Engine uses {used} of the {config.num_draft_tokens} drafts of a block; "
            f"{drafter_setting('drafts', config.family).name}={used} makes the block shorter, and quicker"
        )
    if isinstance(config.variant, DSpark) and config.variant.confidence_width:
        found.append("drafter: the confidence head is left out; the runtime has no use for it")
    trained = config.max_position_embeddings
    if trained and trained < resolved.context_length:
        found.append(
            f"drafter: it was made for {trained} positions, the context has {resolved.context_length}; beyond "
            "the former its drafts may be poor"
        )
    return [*found, *(f"drafter: {note}" for note in config.notes)]
