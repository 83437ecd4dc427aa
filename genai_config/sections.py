"""The sections of ``genai_config.json`` that an export fills in. Fields are the runtime's keys; None is left out."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SessionOptions:
    """onnxruntime's session: providers in order of preference, each with its options (whose values are strings)."""

    log_id: str = "onnxruntime-genai"
    provider_options: tuple[dict[str, dict[str, str]], ...] = ()


@dataclass(frozen=True)
class DecoderInputs:
    """Names of the decoder graph's inputs; ``%d`` stands for the layer."""

    input_ids: str
    attention_mask: str | None = None
    past_key_names: str | None = None
    past_value_names: str | None = None
    past_conv_names: str | None = None
    past_recurrent_names: str | None = None
    block_table: str | None = None
    cumulative_sequence_lengths: str | None = None
    past_sequence_lengths: str | None = None
    attention_metadata: str | None = None
    logits_indices: str | None = None
    state_update_capture_count: str | None = None
    state_update_active: str | None = None


@dataclass(frozen=True)
class DecoderOutputs:
    """Names of the decoder graph's outputs; ``%d`` stands for the layer."""

    logits: str
    present_key_names: str | None = None
    present_value_names: str | None = None
    present_conv_names: str | None = None
    present_recurrent_names: str | None = None
    hidden_states: str | None = None
    state_update_conv_value_names: str | None = None
    state_update_recurrent_capsule_names: str | None = None
    aux_hidden_states: str | None = None


@dataclass(frozen=True)
class StateUpdate:
    """Captured state changes of a group of layers. ``key_head_count`` is for the recurrent group only."""

    capacity: int
    key_head_count: int | None = None


@dataclass(frozen=True)
class StateGroup:
    """Layers of one kind of state: ``paged_kv``, ``fixed_conv`` or ``fixed_recurrent``."""

    kind: str
    layer_ids: tuple[int, ...]
    state_update: StateUpdate | None = None


@dataclass(frozen=True)
class Decoder:
    """The decoder graph and its geometry."""

    filename: str
    head_size: int
    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    inputs: DecoderInputs
    outputs: DecoderOutputs
    session_options: SessionOptions = field(default_factory=SessionOptions)
    state_groups: tuple[StateGroup, ...] | None = None
    state_update_capacity: int | None = None


@dataclass(frozen=True)
class Model:
    """The model as a whole. The runtime chooses its code by ``type``."""

    type: str
    vocab_size: int
    context_length: int
    decoder: Decoder
    bos_token_id: int | None = None
    eos_token_id: tuple[int, ...] | None = None
    pad_token_id: int | None = None


@dataclass(frozen=True)
class Search:
    """How the next token is chosen, unless the caller says otherwise. What is None is left to the runtime."""

    max_length: int
    past_present_share_buffer: bool
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    chunk_size: int | None = None


@dataclass(frozen=True)
class DynamicBatching:
    """The Engine's paged cache and its batches. What is None is left to the runtime."""

    block_size: int
    max_batch_size: int
    num_blocks: int | None = None
    gpu_utilization_factor: float | None = None
    max_scheduled_tokens: int | None = None


@dataclass(frozen=True)
class Engine:
    """The Engine."""

    dynamic_batching: DynamicBatching


@dataclass(frozen=True)
class Speculative:
    """Speculative decoding."""

    max_draft_tokens: int


@dataclass(frozen=True)
class GenaiConfig:
    """The whole file."""

    model: Model
    search: Search
    engine: Engine | None = None
    speculative: Speculative | None = None

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(_without_none(dataclasses.asdict(self)), indent=4) + "\n"

    def graph_names(self) -> tuple[set[str], set[str]]:
        """The names of graph inputs and of graph outputs that the decoder section declares, ``%d`` not filled in."""
        decoder = self.model.decoder
        inputs, outputs = (
            {value for value in dataclasses.asdict(part).values() if value is not None}
            for part in (decoder.inputs, decoder.outputs)
        )
        return inputs, outputs


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
