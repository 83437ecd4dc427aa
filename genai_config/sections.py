"""The sections of ``genai_config.json`` that an export fills in. Fields are the runtime's keys; None is omitted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SessionOptions:
    """onnxruntime's session: providers in order of preference, each with its options (all values are strings)."""

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
    """Captured state changes for a group of layers. ``key_head_count`` is for the recurrent group only."""

    capacity: int
    key_head_count: int | None = None


@dataclass(frozen=True)
class StateGroup:
    """Layers of one kind of state: ``paged_kv``, ``fixed_conv`` or ``fixed_recurrent``."""

    kind: str
    layer_ids: tuple[int, ...]
    state_update: StateUpdate | None = None


@dataclass(frozen=True)
class SharedInitializer:
    """A tensor that two graphs read, and where its bytes are; the runtime puts it on the device once.

    Attributes:
        name: Its name in both graphs.
        data_file: The file, beside the configuration.
        offset: Where it begins, in bytes; a string, as the runtime expects.
        length: Its size in bytes; also a string.
        data_type: ONNX's number for the element type.
        shape: Its shape.
    """

    name: str
    data_file: str
    offset: str
    length: str
    data_type: int
    shape: tuple[int, ...]


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
    shared_initializers: tuple[SharedInitializer, ...] | None = None


@dataclass(frozen=True)
class DrafterInputs:
    """Names of a block drafter's inputs; ``%d`` stands for the layer."""

    aux_hidden_states: str
    input_ids: str
    qkv_row_map: str
    block_row_index: str
    cumulative_sequence_lengths: str
    past_sequence_lengths: str
    block_table: str
    attention_metadata: str
    past_key_names: str
    past_value_names: str


@dataclass(frozen=True)
class DrafterOutputs:
    """Names of a block drafter's outputs; ``%d`` stands for the layer."""

    candidate_ids: str
    scores: str
    present_key_names: str
    present_value_names: str


@dataclass(frozen=True)
class BlockDrafter:
    """A block drafter's graph and its geometry.

    ``sliding_window`` is -1 for none, which the runtime accepts for a DSpark drafter only. ``main_aux_hidden_states``
    is the decoder's output that is fed to the drafter; ``aux_hidden_state_layers`` are its taps, for human readers.
    """

    filename: str
    num_hidden_layers: int
    num_key_value_heads: int
    head_size: int
    block_size: int
    num_draft_tokens: int
    selector_top_k: int
    mask_token_id: int
    sliding_window: int
    main_aux_hidden_states: str
    aux_hidden_state_layers: tuple[int, ...]
    inputs: DrafterInputs
    outputs: DrafterOutputs
    session_options: SessionOptions
    shared_initializers: tuple[SharedInitializer, ...] | None = None


@dataclass(frozen=True)
class Model:
    """The model as a whole. The runtime chooses its implementation by ``type``."""

    type: str
    vocab_size: int
    context_length: int
    decoder: Decoder
    bos_token_id: int | None = None
    eos_token_id: tuple[int, ...] | None = None
    pad_token_id: int | None = None
    dflash2: BlockDrafter | None = None
    dspark: BlockDrafter | None = None


# The sections of a model that name a graph, in the order in which they appear in a package.
GRAPH_SECTIONS = ("decoder", "dflash2", "dspark")


@dataclass(frozen=True)
class Search:
    """How the next token is chosen, unless the caller says otherwise. Fields that are None are left to the runtime."""

    max_length: int
    past_present_share_buffer: bool
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_length: int | None = None
    chunk_size: int | None = None


@dataclass(frozen=True)
class DynamicBatching:
    """The Engine's paged cache and its batches. Fields that are None are left to the runtime."""

    block_size: int
    max_batch_size: int
    num_blocks: int | None = None
    gpu_utilization_factor: float | None = None
    max_scheduled_tokens: int | None = None
    prefix_caching: bool | None = None


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

    def sharing(self, tensors: Mapping[str, tuple[SharedInitializer, ...]]) -> GenaiConfig:
        """The same configuration with the tensors that graphs share, by the name of each graph's section.

        A section that can say what its graph shares always does so, even if that is nothing.
        """
        sections = {}
        for role, shared in tensors.items():
            section = getattr(self.model, role)
            if shared or hasattr(section, "shared_initializers"):
                sections[role] = dataclasses.replace(section, shared_initializers=shared)
        return dataclasses.replace(self, model=dataclasses.replace(self.model, **sections))


def graph_names(section: Decoder | BlockDrafter) -> tuple[set[str], set[str]]:
    """The names of graph inputs and of graph outputs that a section declares, with ``%d`` not filled in."""
    inputs, outputs = (
        {value for value in dataclasses.asdict(part).values() if value is not None}
        for part in (section.inputs, section.outputs)
    )
    return inputs, outputs


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
