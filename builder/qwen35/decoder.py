"""The decoder: embedding, layers, final norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from builder.qwen35.attention import DenseAttention, PackedAttention
from builder.qwen35.config import FULL, TargetConfig
from builder.qwen35.gated_delta_net import DenseGatedDeltaNet, PackedGatedDeltaNet
from builder.qwen35.layout import DenseRun, LayerState, Layout, PackedRun
from onnxkit.layers.mlp import MLP
from onnxkit.layers.norms import ResidualNorm
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Embedding
from onnxkit.weights.parameters import PLUS_ONE

ATTENTION = {Layout.DENSE: DenseAttention, Layout.PACKED: PackedAttention}
DELTA_NET = {Layout.DENSE: DenseGatedDeltaNet, Layout.PACKED: PackedGatedDeltaNet}


@dataclass(frozen=True)
class Stream:
    """The residual stream between two layers: what has been summed, and the branch that the next norm will add."""

    residual: ir.Value
    branch: ir.Value | None


class DecoderLayer(nn.Module):
    """One layer: a mixer over tokens and a feed-forward part, each behind a norm of the residual stream."""

    def __init__(self, config: TargetConfig, kind: str, layout: Layout, precision: Precision) -> None:
        super().__init__()
        size, epsilon = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = ResidualNorm(size, epsilon, precision, PLUS_ONE)
        self.kind = kind
        if kind == FULL:
            self.self_attn = ATTENTION[layout](config, precision)
        else:
            self.linear_attn = DELTA_NET[layout](config, precision)
        self.post_attention_layernorm = ResidualNorm(size, epsilon, precision, PLUS_ONE)
        self.mlp = MLP(size, config.intermediate_size, precision)

    def forward(
        self, op: OpBuilder, stream: Stream, run: DenseRun | PackedRun, state: LayerState
    ) -> tuple[Stream, LayerState, ir.Value]:
        """The stream and the state after this layer, and the residual stream that entered it."""
        mixer = self.self_attn if self.kind == FULL else self.linear_attn
        x, entering = self.input_layernorm(op, stream.residual, stream.branch)
        branch, state = mixer(op, x, run, state)
        x, residual = self.post_attention_layernorm(op, entering, branch)
        return Stream(residual, self.mlp(op, x)), state, entering


@dataclass(frozen=True)
class TextOutput:
    """What the text model gives.

    Attributes:
        normed: The final norm's output, ``[tokens, hidden]``.
        states: Every layer's new state.
        entering: The residual stream entering each layer, and the final norm, ``[tokens, hidden]`` each.
    """

    normed: ir.Value
    states: list[LayerState]
    entering: list[ir.Value]


class TextModel(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: TargetConfig, layout: Layout, precision: Precision) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, precision)
        self.layers = nn.ModuleList([DecoderLayer(config, kind, layout, precision) for kind in config.layer_types])
        self.norm = ResidualNorm(config.hidden_size, config.rms_norm_eps, precision, PLUS_ONE)

    def forward(
        self, op: OpBuilder, ids: ir.Value, run: DenseRun | PackedRun, states: Sequence[LayerState]
    ) -> TextOutput:
        """``ids`` is ``[tokens]`` in either layout."""
        stream = Stream(self.embed_tokens(op, ids), None)
        presents, entering = [], []
        for layer, state in zip(self.layers, states, strict=True):
            stream, present, entered = layer(op, stream, run, state)
            presents.append(present)
            entering.append(entered)
        normed, last = self.norm(op, stream.residual, stream.branch)
        return TextOutput(normed, presents, [*entering, last])
