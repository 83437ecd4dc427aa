"""The packed target: the tokens of several requests one after another, over paged caches, for the runtime's Engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnxscript import GraphBuilder, OpBuilder

from builder.family import TargetOptions
from builder.qwen35.causal_lm import CausalLM, state_inputs
from builder.qwen35.config import TargetConfig
from builder.qwen35.graph_io import (
    AUX_HIDDEN_STATES,
    CAPTURE_ACTIVE,
    CAPTURE_COUNT,
    HIDDEN_STATES,
    INPUT_IDS,
    LOGITS,
    LOGITS_INDICES,
    TargetOutputs,
)
from builder.qwen35.layout import LayerState, Layout, PackedRun
from onnxkit.layers.graph import F32, I32, I64, IR_VERSION, Type, cast, empty_graph
from onnxkit.layers.paged_attention import BLOCK_TABLE, Paging, paging_types


class PackedCausalLM(CausalLM):
    """The packed target: token ids, the requests' layout and states in, logits and states out."""

    def forward(self, op: OpBuilder, inputs: Mapping[str, ir.Value], states: Sequence[LayerState]) -> TargetOutputs:
        """The graph's outputs, typed and named."""
        config, options, dtype = self.config, self.options, self.options.precision.activations
        text = self.model(op, inputs[INPUT_IDS], self._run(op, inputs), states)
        chosen, rows = text.normed, "num_tokens"
        if options.prune_lm_head:
            chosen, rows = op.Gather(text.normed, inputs[LOGITS_INDICES]), "num_logits"
        outputs = TargetOutputs()
        logits = cast(op, self.lm_head(op, chosen), dtype, F32)
        outputs.add(LOGITS, logits, F32, (rows, config.vocab_size))
        outputs.add_states(text.states, state_types(config, options))
        if options.include_hidden_states:
            outputs.add(HIDDEN_STATES, text.normed, dtype, ("num_tokens", config.hidden_size))
        if options.taps:
            aux = self.taps(op, text)
            outputs.add(AUX_HIDDEN_STATES, aux, dtype, ("num_tokens", len(options.taps) * config.hidden_size))
        return outputs

    def _run(self, op: OpBuilder, inputs: Mapping[str, ir.Value]) -> PackedRun:
        cos, sin = self.rotary_emb(op)
        return PackedRun(
            paging=Paging.of(inputs),
            cos=cos,
            sin=sin,
            capture_count=inputs.get(CAPTURE_COUNT),
            capture_active=inputs.get(CAPTURE_ACTIVE),
            capacity=self.options.capacity,
        )


def state_types(config: TargetConfig, options: TargetOptions) -> dict[str, Type]:
    """Element type and shape of each part of a layer's state."""
    sizes, dtype, capacity = config.linear, options.precision.activations, options.capacity
    cache: Type = (dtype, ["num_blocks", options.page_size, config.num_key_value_heads, config.head_dim])
    row = sizes.value_heads + sizes.key_heads * sizes.key_dim + sizes.value_width  # decays, keys, changes
    return {
        "key": cache,
        "value": cache,
        "conv": (dtype, ["batch_size", sizes.conv_channels, sizes.kernel - 1]),
        "recurrent": (F32, ["batch_size", sizes.value_heads, sizes.value_dim, sizes.key_dim]),
        "conv_value": (dtype, ["batch_size", capacity, sizes.conv_channels]),
        "recurrent_capsule": (F32, ["batch_size", capacity * row]),
    }


def _layout_inputs(options: TargetOptions) -> dict[str, Type]:
    """The inputs that say which rows belong to whom."""
    paging = paging_types("batch_size")
    inputs = {BLOCK_TABLE: paging.pop(BLOCK_TABLE), **paging}
    if options.prune_lm_head:
        inputs[LOGITS_INDICES] = (I32, ["num_logits"])
    if options.capacity:
        inputs |= {CAPTURE_COUNT: (I32, ["batch_size"]), CAPTURE_ACTIVE: (I32, [1])}
    return inputs


def build_packed(config: TargetConfig, options: TargetOptions) -> ir.Model:
    """Build the graph. Its weights are parameters without data yet; each says where its bytes come from."""
    graph = empty_graph("target")
    builder = GraphBuilder(graph)
    inputs = {INPUT_IDS: builder.input(INPUT_IDS, I64, ["num_tokens"])}
    states = state_inputs(builder, config, state_types(config, options))
    inputs |= {name: builder.input(name, *kind) for name, kind in _layout_inputs(options).items()}
    module = PackedCausalLM(config, options, Layout.PACKED)
    graph.outputs.extend(module(builder.op, inputs, states))
    return ir.Model(graph, ir_version=IR_VERSION)
