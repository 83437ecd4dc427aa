"""What all block drafters share: target features fused into context rows, and layers in which a block attends to them.

The math is that of DFlash (Chen et al., 2026, https://arxiv.org/abs/2602.06036). A context row is made of the target's
hidden states of one committed token; it gives keys and values to every layer and passes through none of them. A block
row starts from an embedding, the anchor's or the mask's, and attends to the context and to its block.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from drafters.checkpoint.config import DrafterConfig, LayerAttention
from onnxkit.layers.kv_cache import KeyValueCache
from onnxkit.layers.mlp import MLP
from onnxkit.layers.norms import NormWeight, ResidualNorm
from onnxkit.layers.paged_attention import Heads, Paging, paged_attention
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Linear, StackedLinear, whole
from onnxkit.weights.parameters import Weight


@dataclass(frozen=True)
class DraftRun:
    """Values that every layer shares. A run's packed rows are, request by request, its new context and its block.

    Attributes:
        context: ``[context rows, hidden]``, the new context rows of all requests.
        qkv_row_map: ``[rows]`` int32, each packed row's place in block rows and context rows, one after the other.
        block_row_index: ``[block rows]`` int32, where the block rows stand among the packed rows.
        paging: Which packed rows and which pages each request has.
        cos: ``[positions, head / 2]``, the rotary table.
        sin: The same of sines.
    """

    context: ir.Value
    qkv_row_map: ir.Value
    block_row_index: ir.Value
    paging: Paging
    cos: ir.Value
    sin: ir.Value


class BlockAttention(nn.Module):
    """Attention of block rows to context and block. One projection reads its weights once for rows of both kinds.

    Context rows also get a query, which nothing reads: at the few rows of a step it costs less than a second
    projection. The operator writes the block's keys and values behind the context; the next run writes over them.
    """

    def __init__(self, config: DrafterConfig, attention: LayerAttention, precision: Precision) -> None:
        super().__init__()
        count, kv_count = config.num_attention_heads, config.num_key_value_heads
        self.heads = Heads(count, kv_count, attention.causal, attention.window)
        self.epsilon = config.rms_norm_eps
        width, kv_width = count * config.head_dim, kv_count * config.head_dim
        parts = [whole("q_proj", width), whole("k_proj", kv_width), whole("v_proj", kv_width)]
        self.stacked = precision.weights.stacked
        packed = [[rows for part in parts for rows in part]]
        bias = config.attention_bias
        self.qkv = StackedLinear(config.hidden_size, packed if self.stacked else parts, precision, bias=bias)
        self.q_norm, self.k_norm = (NormWeight(config.head_dim, precision) for _ in range(2))
        self.o_proj = Linear(width, config.hidden_size, precision, bias=bias)
        sinks = config.attention_sinks
        self.attention_sink_bias = Weight("attention_sink_bias", [count], precision.activations) if sinks else None

    def forward(
        self, op: OpBuilder, x: ir.Value, run: DraftRun, cache: KeyValueCache
    ) -> tuple[ir.Value, KeyValueCache]:
        """``[block rows, hidden] -> [block rows, hidden]``, and the cache, whose pages are filled in place."""
        packed = op.Gather(op.Concat(x, run.context, axis=0), run.qkv_row_map)
        query, key, value = (*self.qkv(op, packed), None, None)[:3]
        y, cache = paged_attention(
            op,
            query,
            key,
            value,
            cache,
            run.paging,
            self.heads,
            rotary=(run.cos, run.sin),
            norms=(self.q_norm(op), self.k_norm(op)),
            epsilon=self.epsilon,
            sinks=self.attention_sink_bias,
        )
        return self.o_proj(op, op.Gather(y, run.block_row_index)), cache


class DraftLayer(nn.Module):
    """One layer: attention and feed-forward part, each behind a norm of the residual stream."""

    def __init__(self, config: DrafterConfig, attention: LayerAttention, precision: Precision) -> None:
        super().__init__()
        size, epsilon = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = ResidualNorm(size, epsilon, precision)
        self.self_attn = BlockAttention(config, attention, precision)
        self.post_attention_layernorm = ResidualNorm(size, epsilon, precision)
        self.mlp = MLP(size, config.intermediate_size, precision)

    def forward(
        self, op: OpBuilder, residual: ir.Value, branch: ir.Value | None, run: DraftRun, cache: KeyValueCache
    ) -> tuple[ir.Value, ir.Value, KeyValueCache]:
        """The residual stream, the branch that the next norm will add to it, and the cache."""
        x, residual = self.input_layernorm(op, residual, branch)
        x, cache = self.attend(op, x, run, cache)
        x, residual = self.post_attention_layernorm(op, residual, x)
        return residual, self.feed(op, x), cache

    def attend(self, op: OpBuilder, x: ir.Value, run: DraftRun, cache: KeyValueCache) -> tuple[ir.Value, KeyValueCache]:
        """The attention sub-layer, ``[block rows, hidden]``."""
        return self.self_attn(op, x, run, cache)

    def feed(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """The feed-forward sub-layer, ``[block rows, hidden]``."""
        return self.mlp(op, x)
