"""``genai_config.json`` of a target, from what the checkpoint declares and what the graph has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builder.family import Target
from builder.model_config import ModelConfig
from builder.options import BuildOptions
from builder.package import Package
from builder.resolved import Resolved
from genai_config import runtime
from genai_config.sections import (
    DynamicBatching,
    Engine,
    GenaiConfig,
    Model,
    Search,
    SessionOptions,
    Speculative,
)
from onnxkit.json_object import JsonObject
from onnxkit.key_table import same, short

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


def genai_config(
    target: Target, options: BuildOptions, resolved: Resolved, generation: JsonObject, package: Package
) -> GenaiConfig:
    """The configuration of a package, but for where shared tensors lie."""
    config = target.config
    sections: dict[str, Any] = {graph.role: graph.section for graph in package.graphs}
    model = Model(
        type=target.model_type,
        vocab_size=config.vocab_size,
        context_length=resolved.context_length,
        bos_token_id=_first(generation.token_ids("bos_token_id", config.vocab_size), config.bos_token_id),
        eos_token_id=stop_ids(config, generation),
        pad_token_id=_first(generation.token_ids("pad_token_id", config.vocab_size), config.pad_token_id),
        **sections,
    )
    return GenaiConfig(
        model,
        _search(options, resolved.context_length, generation),
        engine=_engine(options, resolved) if resolved.packed else None,
        speculative=Speculative(resolved.max_draft_tokens) if resolved.max_draft_tokens else None,
    )


def session_options(options: BuildOptions) -> SessionOptions:
    """The execution provider, and whether it may record CUDA graphs; values are strings for the runtime.

    The packed graphs run whole on the GPU, and the Engine records a graph for each shape of a step. The dense graph
    computes with the length of its mask on the CPU, which no recording can hold.
    """
    if options.provider == "cpu":
        return SessionOptions()
    record = options.packed and options.enable_cuda_graph is not False
    return SessionOptions(provider_options=({"cuda": {"enable_cuda_graph": "1" if record else "0"}},))


def _engine(options: BuildOptions, resolved: Resolved) -> Engine:
    factor = options.gpu_utilization_factor
    if factor is None and options.num_blocks is None:
        factor = GPU_UTILIZATION
    return Engine(
        DynamicBatching(
            block_size=resolved.page_size,
            max_batch_size=resolved.max_batch_size or runtime.DEFAULT_BATCH,
            num_blocks=options.num_blocks,
            gpu_utilization_factor=factor,
            max_scheduled_tokens=options.max_scheduled_tokens,
            prefix_caching=options.prefix_caching,
        )
    )


def stop_ids(config: ModelConfig, generation: JsonObject) -> tuple[int, ...]:
    """Ids that end a text: those of generation_config.json and of config.json together.

    Raises:
        ExportError: One is beyond the vocabulary, for which the runtime refuses every prompt; or none is
            declared, and every text would run to the maximum length.
    """
    declared = generation.token_ids("eos_token_id", config.vocab_size)
    if not declared and not config.eos_token_ids:
        raise generation.error(
            "eos_token_id",
            f"the token id, from 0 to {config.vocab_size - 1}, that ends a text, here or in config.json",
            "Add eos_token_id: the id of the tokenizer's eos_token, and that of the chat template's end of a turn.",
        )
    return tuple(dict.fromkeys((*declared, *config.eos_token_ids)))


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
