"""A drafter's entry of the package: its graph, its section of the configuration, what it costs."""

from __future__ import annotations

import onnx_ir as ir

from builder.drafter import Drafter
from builder.drafter_cost import DrafterCost
from builder.family import Target
from builder.option_table import drafter_setting
from builder.options import BuildOptions
from builder.package import GraphPlan
from builder.resolved import MAX_BATCH_SIZE, Resolved
from builder.runtime_config import session_options
from drafters.checkpoint.config import DSpark
from drafters.checkpoint.names import draft_names
from drafters.graph import drafter as ports
from drafters.graph.build import build_drafter
from drafters.graph.drafter import DrafterOptions
from genai_config.sections import BlockDrafter, Decoder, DrafterInputs, DrafterOutputs
from onnxkit.weights.manifest import plan_tensors
from onnxkit.weights.save import external_bytes, shared_parameters


def drafter_graph(
    drafter: Drafter, target: Target, options: BuildOptions, resolved: Resolved, decoder: GraphPlan
) -> GraphPlan:
    """The drafter's entry of the package, beside that of its target, the ``decoder``.

    Raises:
        ExportError: Tensors are missing, misshapen, of another type, or read by nothing; or the cache has no room.
    """
    asked = DrafterOptions(
        dtype=resolved.style.dtype,
        context_length=resolved.context_length,
        page_size=resolved.page_size,
        embedding=target.embedding,
        head=target.head,
    )
    model = plan_drafter(drafter, asked, allow_nonfinite=options.allow_nonfinite)
    assert isinstance(decoder.section, Decoder) and decoder.section.outputs.aux_hidden_states is not None
    section = _section(drafter, options, resolved.context_length, decoder.section.outputs.aux_hidden_states)
    cost = DrafterCost(
        drafter,
        own=external_bytes(model),
        shared=sum(shared.byte_count for shared in shared_parameters(model)),
        target_token=target.token_bytes,
        page_size=resolved.page_size,
        pages=drafter.ring_pages(resolved.context_length, resolved.page_size),
        requests=resolved.max_batch_size or MAX_BATCH_SIZE,
    )
    cost.check_blocks(options.num_blocks)
    notes = (*_notes(drafter, resolved), *cost.note(resolved.context_length))
    return GraphPlan(drafter.config.kind, section, model, drafter.checkpoint, notes, tuple(cost.lines()))


def plan_drafter(drafter: Drafter, options: DrafterOptions, *, allow_nonfinite: bool = False) -> ir.Model:
    """The drafter's graph, every initializer but the shared ones with its tensor.

    Raises:
        ExportError: Tensors are missing, misshapen, of another type, or read by nothing.
    """
    model, module = build_drafter(drafter.config, options)
    names = draft_names(drafter.checkpoint)
    plan_tensors(module, drafter.checkpoint, names, allow_nonfinite=allow_nonfinite)
    return model


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
            aux_hidden_states=ports.AUX_HIDDEN_STATES,
            input_ids=ports.INPUT_IDS,
            qkv_row_map=ports.QKV_ROW_MAP,
            block_row_index=ports.BLOCK_ROW_INDEX,
            cumulative_sequence_lengths=ports.CUMULATIVE,
            past_sequence_lengths=ports.PAST_LENGTHS,
            block_table=ports.BLOCK_TABLE,
            attention_metadata=ports.METADATA,
            past_key_names=ports.PAST["key"],
            past_value_names=ports.PAST["value"],
        ),
        outputs=DrafterOutputs(
            candidate_ids=ports.CANDIDATE_IDS,
            scores=ports.SCORES,
            present_key_names=ports.PRESENT["key"],
            present_value_names=ports.PRESENT["value"],
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
    return [*found, *(f"drafter: {note}" for note in (*config.notes, *drafter.checkpoint.index_notes()))]
