"""Qwen 3.5 / 3.6 / 3.8 as a target family: the one record by which the rest of the tool knows this folder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from builder.family import Target, TargetFamily, TargetOptions
from builder.qwen35 import graph_io
from builder.qwen35.config import ARCHITECTURES, FULL, LINEAR, TargetConfig, read_target_config, text_section
from builder.qwen35.dense import build_dense
from builder.qwen35.keys import KEYS
from builder.qwen35.names import EMBEDDING, HEAD, find_names
from builder.qwen35.norms import check_norms
from builder.qwen35.packed import build_packed
from genai_config import runtime
from genai_config.sections import Decoder, DecoderInputs, DecoderOutputs, SessionOptions, StateGroup, StateUpdate
from onnxkit.json_object import JsonObject
from onnxkit.layers import paged_attention
from onnxkit.weights.checkpoint import Checkpoint

# The runtime's code for a text-only Qwen 3.5.
MODEL_TYPE = "qwen3_5_text"


def open_checkpoint(checkpoint: Checkpoint) -> Target:
    """Open and check a checkpoint: its configuration, its tensors' names, the convention of its norms.

    Raises:
        ExportError: One of them is not what the graph takes.
    """
    config = read_target_config(checkpoint.config)
    names = find_names(checkpoint, config)
    check_norms(checkpoint, config, names)
    return Target(
        model_type=MODEL_TYPE,
        checkpoint=checkpoint,
        text=text_section(checkpoint.config, config.architecture),
        config=config,
        stored_name=names,
        left_out=names.left_out,
        embedding=EMBEDDING,
        head=EMBEDDING if names.tied else HEAD,
        stored_as=f"{names.prefix or '(no prefix)'}*; the head is {names.head}",
        notes=names.notes,
        token_bytes=runtime.token_bytes(config.layer_types.count(FULL), config.num_key_value_heads, config.head_dim),
        build=partial(_build, config),
        section=partial(_section, config),
    )


def _sections(config: JsonObject) -> list[JsonObject]:
    name = next(name for name in config.strings("architectures") if name in ARCHITECTURES)
    text = text_section(config, name)
    return [config] if text is config else [config, text]


def _build(config: TargetConfig, options: TargetOptions, packed: bool) -> ir.Model:
    return build_packed(config, options) if packed else build_dense(config, options)


def _section(
    config: TargetConfig, options: TargetOptions, packed: bool, filename: str, session: SessionOptions
) -> Decoder:
    return Decoder(
        filename=filename,
        head_size=config.head_dim,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_hidden_layers=config.num_hidden_layers,
        num_key_value_heads=config.num_key_value_heads,
        inputs=_inputs(options, packed),
        outputs=_outputs(options),
        session_options=session,
        state_groups=tuple(_state_groups(config, options.capacity)) if packed else None,
        state_update_capacity=options.capacity or None,
    )


def _inputs(options: TargetOptions, packed: bool) -> DecoderInputs:
    captures = options.capacity > 0
    return DecoderInputs(
        input_ids=graph_io.INPUT_IDS,
        attention_mask=None if packed else graph_io.ATTENTION_MASK,
        past_key_names=graph_io.PAST["key"],
        past_value_names=graph_io.PAST["value"],
        past_conv_names=graph_io.PAST["conv"],
        past_recurrent_names=graph_io.PAST["recurrent"],
        block_table=paged_attention.BLOCK_TABLE if packed else None,
        cumulative_sequence_lengths=paged_attention.CUMULATIVE if packed else None,
        past_sequence_lengths=paged_attention.PAST_LENGTHS if packed else None,
        attention_metadata=paged_attention.METADATA if packed else None,
        logits_indices=graph_io.LOGITS_INDICES if packed and options.prune_lm_head else None,
        state_update_capture_count=graph_io.CAPTURE_COUNT if captures else None,
        state_update_active=graph_io.CAPTURE_ACTIVE if captures else None,
    )


def _outputs(options: TargetOptions) -> DecoderOutputs:
    captures = options.capacity > 0
    return DecoderOutputs(
        logits=graph_io.LOGITS,
        present_key_names=graph_io.PRESENT["key"],
        present_value_names=graph_io.PRESENT["value"],
        present_conv_names=graph_io.PRESENT["conv"],
        present_recurrent_names=graph_io.PRESENT["recurrent"],
        hidden_states=graph_io.HIDDEN_STATES if options.include_hidden_states else None,
        state_update_conv_value_names=graph_io.PRESENT["conv_value"] if captures else None,
        state_update_recurrent_capsule_names=graph_io.PRESENT["recurrent_capsule"] if captures else None,
        aux_hidden_states=graph_io.AUX_HIDDEN_STATES if options.taps else None,
    )


def _state_groups(config: TargetConfig, capacity: int) -> Iterator[StateGroup]:
    """Which layers have which state. With no capacity the Engine proposes no drafts, and says nothing."""
    layers = {kind: tuple(i for i, k in enumerate(config.layer_types) if k == kind) for kind in (FULL, LINEAR)}
    yield StateGroup("paged_kv", layers[FULL])
    yield StateGroup("fixed_conv", layers[LINEAR], StateUpdate(capacity) if capacity else None)
    update = StateUpdate(capacity, config.linear.key_heads) if capacity else None
    yield StateGroup("fixed_recurrent", layers[LINEAR], update)


QWEN35 = TargetFamily(
    title="Qwen 3.5",
    architectures=tuple(ARCHITECTURES),
    embedding=EMBEDDING,
    head=HEAD,
    keys=KEYS,
    sections=_sections,
    open=open_checkpoint,
)
