"""The dense target: token ids and a mask in, ``[batch, sequence]``, for the runtime's Generator."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import GraphBuilder, OpBuilder

from builder.family import TargetOptions
from builder.qwen35.causal_lm import CausalLM, state_inputs
from builder.qwen35.config import TargetConfig
from builder.qwen35.graph_io import (
    ATTENTION_MASK,
    AUX_HIDDEN_STATES,
    HIDDEN_STATES,
    INPUT_IDS,
    LOGITS,
    TargetOutputs,
)
from builder.qwen35.layout import LayerState, Layout, dense_run
from onnxkit.layers.graph import F32, I64, IR_VERSION, Type, cast, empty_graph


class DenseCausalLM(CausalLM):
    """The dense target: token ids and states in, logits and states out."""

    def forward(
        self, op: OpBuilder, input_ids: ir.Value, mask: ir.Value, states: Sequence[LayerState]
    ) -> TargetOutputs:
        """The graph's outputs, typed and named."""
        config, options, dtype = self.config, self.options, self.options.precision.activations
        run = dense_run(op, input_ids, mask, self.rotary_emb(op))
        text = self.model(op, op.Reshape(input_ids, [-1]), run, states)
        outputs = TargetOutputs()
        if options.prune_lm_head or options.include_hidden_states:
            hidden = op.Reshape(text.normed, run.rows)
        if options.prune_lm_head:
            last = op.Gather(hidden, -1, axis=1)
            logits = op.Unsqueeze(self.lm_head(op, last), [1])
            outputs.add(LOGITS, cast(op, logits, dtype, F32), F32, ("batch_size", 1, config.vocab_size))
        else:
            logits = op.Reshape(self.lm_head(op, text.normed), run.rows)
            shape = ("batch_size", "sequence_length", config.vocab_size)
            outputs.add(LOGITS, cast(op, logits, dtype, F32), F32, shape)
        outputs.add_states(text.states, state_types(config, dtype, "total_sequence_length"))
        if options.include_hidden_states:
            shape = ("batch_size", "sequence_length", config.hidden_size)
            outputs.add(HIDDEN_STATES, hidden, dtype, shape)
        if options.taps:
            aux = op.Reshape(self.taps(op, text), run.rows)
            shape = ("batch_size", "sequence_length", len(options.taps) * config.hidden_size)
            outputs.add(AUX_HIDDEN_STATES, aux, dtype, shape)
        return outputs


def state_types(config: TargetConfig, dtype: ir.DataType, length: str) -> dict[str, Type]:
    """Element type and shape of each part of a layer's state; ``length`` names the cache's token dimension."""
    sizes = config.linear
    cache: Type = (dtype, ["batch_size", config.num_key_value_heads, length, config.head_dim])
    return {
        "key": cache,
        "value": cache,
        "conv": (dtype, ["batch_size", sizes.kernel - 1, sizes.conv_channels]),
        "recurrent": (F32, ["batch_size", sizes.value_heads, sizes.key_dim, sizes.value_dim]),
    }


def build_dense(config: TargetConfig, options: TargetOptions) -> ir.Model:
    """Build the graph. Its weights are parameters without data yet; each says where its bytes come from."""
    graph = empty_graph("target")
    builder = GraphBuilder(graph)
    input_ids = builder.input(INPUT_IDS, I64, ["batch_size", "sequence_length"])
    mask = builder.input(ATTENTION_MASK, I64, ["batch_size", "total_sequence_length"])
    states = state_inputs(builder, config, state_types(config, options.precision.activations, "past_sequence_length"))
    module = DenseCausalLM(config, options, Layout.DENSE)
    graph.outputs.extend(module(builder.op, input_ids, mask, states))
    return ir.Model(graph, ir_version=IR_VERSION)
