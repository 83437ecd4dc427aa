"""``genai_config.json`` of a target, from what the checkpoint declares and what the graph has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from builder.drafter import Drafter
from builder.options import BuildOptions
from builder.qwen35 import borders
from builder.qwen35.borders import PAST, PRESENT, TargetOptions
from builder.qwen35.config import FULL, LINEAR, TargetConfig
from drafters.graph import drafter as ports
from genai_config import runtime
from genai_config.sections import (
    BlockDrafter,
    Decoder,
    DecoderInputs,
    DecoderOutputs,
    DrafterInputs,
    DrafterOutputs,
    DynamicBatching,
    Engine,
    GenaiConfig,
    Model,
    Search,
    SessionOptions,
    SharedInitializer,
    Speculative,
    StateGroup,
    StateUpdate,
    graph_names,
)
from onnxkit.json_object import JsonObject
from onnxkit.key_table import same, short

# The runtime's code for a text-only Qwen 3.5.
MODEL_TYPE = "qwen3_5_text"

# What choosing a token by a list of these would need, and the values that ask for nothing. min_p is one that the
# runtime's Generator takes, but only from the caller: its configuration has no such key.
_NOT_TAKEN: dict[str, object] = {
    "min_p": 0,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "encoder_repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "penalty_alpha": 0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "sequence_bias": {},
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "min_new_tokens": 0,
    "stop_strings": [],
}

# With other values of these the Engine drafts nothing.
_AGAINST_DRAFTS = {"repetition_penalty": 1, "no_repeat_ngram_size": 0}

# The Engine's share of the GPU's memory where nothing else is asked for.
GPU_UTILIZATION = 0.6


def target_genai_config(
    config: TargetConfig,
    options: BuildOptions,
    target: TargetOptions,
    generation: JsonObject,
    filename: str,
    drafter: BlockDrafter | None = None,
) -> GenaiConfig:
    """The configuration of an export of a target, with or without a drafter beside it."""
    packed = bool(options.use_paged_attention)
    decoder = Decoder(
        filename=filename,
        head_size=config.head_dim,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_hidden_layers=config.num_hidden_layers,
        num_key_value_heads=config.num_key_value_heads,
        inputs=_inputs(options, target),
        outputs=_outputs(options, target),
        session_options=_session_options(options),
        state_groups=tuple(_state_groups(config, target.capacity)) if packed else None,
        state_update_capacity=target.capacity or None,
    )
    kind = {} if drafter is None else {drafter.filename.removesuffix(".onnx"): drafter}
    model = Model(
        type=MODEL_TYPE,
        vocab_size=config.vocab_size,
        context_length=target.context_length,
        decoder=decoder,
        bos_token_id=_first(generation.token_ids("bos_token_id", config.vocab_size), config.bos_token_id),
        eos_token_id=stop_ids(config, generation),
        pad_token_id=_first(generation.token_ids("pad_token_id", config.vocab_size), config.pad_token_id),
        **kind,
    )
    return GenaiConfig(
        model,
        _search(options, target.context_length, generation),
        engine=_engine(options, target.page_size) if packed else None,
        speculative=Speculative(options.max_draft_tokens) if options.max_draft_tokens else None,
    )


def _session_options(options: BuildOptions) -> SessionOptions:
    """The execution provider, and whether it may record CUDA graphs; values are strings for the runtime.

    The packed graphs run whole on the GPU, and the Engine records a graph for each shape of a step. The dense graph
    computes with the length of its mask on the CPU, which no recording can hold.
    """
    if options.provider == "cpu":
        return SessionOptions()
    record = bool(options.use_paged_attention) and options.enable_cuda_graph is not False
    return SessionOptions(provider_options=({"cuda": {"enable_cuda_graph": "1" if record else "0"}},))


def drafter_section(drafter: Drafter, options: BuildOptions, context_length: int) -> BlockDrafter:
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
        main_aux_hidden_states=borders.AUX_HIDDEN_STATES,
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
        session_options=_session_options(options),
    )


def shared_initializers(tensors: Iterable[ir.ExternalTensor]) -> tuple[SharedInitializer, ...]:
    """The entries of tensors that decoder and drafter read, from where a data file holds them."""
    return tuple(
        SharedInitializer(
            name=str(tensor.name),
            data_file=str(tensor.location),
            offset=str(tensor.offset or 0),
            length=str(tensor.nbytes),
            data_type=int(tensor.dtype),
            shape=tuple(int(size) for size in tensor.shape.numpy()),
        )
        for tensor in tensors
    )


def _inputs(options: BuildOptions, target: TargetOptions) -> DecoderInputs:
    packed, captures = bool(options.use_paged_attention), target.capacity > 0
    return DecoderInputs(
        input_ids=borders.INPUT_IDS,
        attention_mask=None if packed else borders.ATTENTION_MASK,
        past_key_names=PAST["key"],
        past_value_names=PAST["value"],
        past_conv_names=PAST["conv"],
        past_recurrent_names=PAST["recurrent"],
        block_table=borders.BLOCK_TABLE if packed else None,
        cumulative_sequence_lengths=borders.CUMULATIVE if packed else None,
        past_sequence_lengths=borders.PAST_LENGTHS if packed else None,
        attention_metadata=borders.METADATA if packed else None,
        logits_indices=borders.LOGITS_INDICES if packed and target.prune_lm_head else None,
        state_update_capture_count=borders.CAPTURE_COUNT if captures else None,
        state_update_active=borders.CAPTURE_ACTIVE if captures else None,
    )


def _outputs(options: BuildOptions, target: TargetOptions) -> DecoderOutputs:
    captures = target.capacity > 0
    return DecoderOutputs(
        logits=borders.LOGITS,
        present_key_names=PRESENT["key"],
        present_value_names=PRESENT["value"],
        present_conv_names=PRESENT["conv"],
        present_recurrent_names=PRESENT["recurrent"],
        hidden_states=borders.HIDDEN_STATES if options.include_hidden_states else None,
        state_update_conv_value_names=PRESENT["conv_value"] if captures else None,
        state_update_recurrent_capsule_names=PRESENT["recurrent_capsule"] if captures else None,
        aux_hidden_states=borders.AUX_HIDDEN_STATES if target.taps else None,
    )


def _state_groups(config: TargetConfig, capacity: int) -> Iterator[StateGroup]:
    """Which layers have which state. With no capacity the Engine proposes no drafts, and says nothing."""
    layers = {kind: tuple(i for i, k in enumerate(config.layer_types) if k == kind) for kind in (FULL, LINEAR)}
    yield StateGroup("paged_kv", layers[FULL])
    yield StateGroup("fixed_conv", layers[LINEAR], StateUpdate(capacity) if capacity else None)
    update = StateUpdate(capacity, config.linear.key_heads) if capacity else None
    yield StateGroup("fixed_recurrent", layers[LINEAR], update)


def _engine(options: BuildOptions, page_size: int) -> Engine:
    factor = options.gpu_utilization_factor
    if factor is None and options.num_blocks is None:
        factor = GPU_UTILIZATION
    return Engine(
        DynamicBatching(
            block_size=page_size,
            max_batch_size=options.max_batch_size or runtime.DEFAULT_BATCH,
            num_blocks=options.num_blocks,
            gpu_utilization_factor=factor,
            max_scheduled_tokens=options.max_scheduled_tokens,
            prefix_caching=options.prefix_caching,
        )
    )


def stop_ids(config: TargetConfig, generation: JsonObject) -> tuple[int, ...]:
    """Ids that end a text: those that generation_config.json and config.json declare, together.

    Raises:
        ExportError: One is beyond the vocabulary, for which the runtime refuses every prompt; or there is none, and no
            text would end before it is as long as can be.
    """
    declared = generation.token_ids("eos_token_id", config.vocab_size)
    if not declared and not config.eos_token_ids:
        raise generation.error(
            "eos_token_id",
            f"the token id, from 0 to {config.vocab_size - 1}, that ends a text, here or in config.json",
            "Add eos_token_id: the id of the tokenizer's eos_token, and that of the chat template's end of a turn.",
        )
    return tuple(dict.fromkeys((*declared, *config.eos_token_ids)))


def check_names(section: Decoder | BlockDrafter, graph: ir.Graph) -> None:
    """See that a section of the config and its graph name the same inputs and outputs. A difference is a bug here.

    Raises:
        RuntimeError: A name of the graph is not in the config, or one of the config matches nothing in the graph.
    """
    for declared, values in zip(graph_names(section), (graph.inputs, graph.outputs), strict=True):
        names = {str(value.name) for value in values}
        patterns = {name: re.compile(re.escape(name).replace("%d", r"\d+")) for name in declared}
        unused = [name for name, pattern in patterns.items() if not any(pattern.fullmatch(n) for n in names)]
        undeclared = [n for n in names if not any(pattern.fullmatch(n) for pattern in patterns.values())]
        if unused or undeclared:
            raise RuntimeError(f"genai_config.json and the graph disagree: {unused} unused, {undeclared} undeclared")


def _search(options: BuildOptions, context_length: int, generation: JsonObject) -> Search:
    """How to choose tokens: what generation_config.json says; the runtime's defaults where it says nothing.

    A cache that grows with the text needs no memory for a context that is never reached; on CUDA, where allocations are
    dear, one buffer of the full length is used, as users of that runtime know it: they set max_length.
    """
    top_k: Any = generation.integer("top_k", minimum=0, default=None)
    search = Search(
        max_length=context_length,
        past_present_share_buffer=options.provider == "cuda",
        chunk_size=options.paged_chunk_size,
    )
    no_repeat: Any = generation.integer("no_repeat_ngram_size", minimum=0, default=None)
    shortest: Any = generation.integer("min_length", minimum=0, default=None)
    generation.number("min_p", above=-1e-9, maximum=1.0, default=None)
    if options.drafter:  # drafts are checked against the likeliest token; these two keys turn them off
        return replace(search, do_sample=False, min_length=shortest)
    return replace(
        search,
        min_length=shortest,
        no_repeat_ngram_size=no_repeat,
        do_sample=generation.boolean("do_sample", default=None),
        temperature=generation.number("temperature", above=-1e-9, default=None),
        top_k=top_k,
        top_p=generation.number("top_p", maximum=1.0, default=None),
        repetition_penalty=generation.number("repetition_penalty", default=None),
    )


def search_notes(generation: JsonObject, drafter: bool) -> list[str]:
    """Notes where generation_config.json asks for what the export's configuration does not say."""
    notes = []
    dropped = [key for key in _NOT_TAKEN if key in generation and not same(generation.data[key], _NOT_TAKEN[key])]
    if dropped:
        keys = ", ".join(f"{key} {short(generation.data[key])}" for key in dropped)
        notes.append(
            f"search: {keys} of {generation.where} is left to the caller; genai_config.json has no place for it"
        )
    asked = [key for key in ("temperature", "top_k", "top_p", *_AGAINST_DRAFTS) if key in generation]
    penalised = [key for key in _AGAINST_DRAFTS if key in generation and generation.data[key] != _AGAINST_DRAFTS[key]]
    if drafter and (penalised or generation.boolean("do_sample", default=False)):
        keys = ", ".join(asked) or "do_sample"
        notes.append(f"search: greedy by default, for the drafts' sake; {keys} is left to the caller")
    return notes


def _first(ids: tuple[int, ...], other: int | None) -> int | None:
    return ids[0] if ids else other
