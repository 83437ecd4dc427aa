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
from onnxkit.layers.basic import CONTRIB, Linear, NormWeight, ResidualNorm, StackedLinear, Style, whole
from onnxkit.layers.mlp import MLP
from onnxkit.weights.parameters import Weight


@dataclass(frozen=True)
class Rows:
    """Values that every layer shares. A run's packed rows are, request by request, its new context and its block.

    Attributes:
        context: ``[context rows, hidden]``, the new context rows of all requests.
        qkv_row_map: ``[rows]`` int32, each packed row's place in block rows and context rows, one after the other.
        block_row_index: ``[block rows]`` int32, where the block rows stand among the packed rows.
        cumulative_lengths: ``[requests + 1]`` int32, where each request's packed rows begin, and their total.
        past_lengths: ``[requests]`` int32, the position of each request's first packed row.
        block_table: ``[requests, pages]`` int32, the pages of each request's cache.
        attention_metadata: ``[3]`` int32 on the CPU, bounds of the lengths.
        cos: ``[positions, head / 2]``, the rotary table.
        sin: The same of sines.
    """

    context: ir.Value
    qkv_row_map: ir.Value
    block_row_index: ir.Value
    cumulative_lengths: ir.Value
    past_lengths: ir.Value
    block_table: ir.Value
    attention_metadata: ir.Value
    cos: ir.Value
    sin: ir.Value


@dataclass(frozen=True)
class Cache:
    """A layer's keys and values, ``[pages, page size, kv heads, head]`` each."""

    key: ir.Value
    value: ir.Value


class BlockAttention(nn.Module):
    """Attention of block rows to context and block. One projection reads its weights once for rows of both kinds.

    Context rows get a query, too, which nothing reads: at the few rows of a step it costs less than a second
    projection. The operator writes the block's keys and values behind the context; the next run writes over them.
    """

    def __init__(self, config: DrafterConfig, attention: LayerAttention, style: Style) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.attention = config.num_attention_heads, config.num_key_value_heads, attention
        self.epsilon = config.rms_norm_eps
        width, kv_width = self.heads * config.head_dim, self.kv_heads * config.head_dim
        parts = [whole("q_proj", width), whole("k_proj", kv_width), whole("v_proj", kv_width)]
        self.stacked = style.stacked
        packed = [[rows for part in parts for rows in part]]
        bias = config.attention_bias
        self.qkv = StackedLinear(config.hidden_size, packed if self.stacked else parts, style, bias=bias)
        self.q_norm, self.k_norm = (NormWeight(config.head_dim, style) for _ in range(2))
        self.o_proj = Linear(width, config.hidden_size, style, bias=bias)
        sinks = config.attention_sinks
        self.attention_sink_bias = Weight("attention_sink_bias", [self.heads], style.dtype) if sinks else None

    def forward(self, op: OpBuilder, x: ir.Value, rows: Rows, cache: Cache) -> tuple[ir.Value, Cache]:
        """``[block rows, hidden] -> [block rows, hidden]``, and the cache, whose pages are filled in place."""
        packed = op.Gather(op.Concat(x, rows.context, axis=0), rows.qkv_row_map)
        query, key, value = (*self.qkv(op, packed), None, None)[:3]
        window = {} if self.attention.window is None else {"local_window_size": self.attention.window}
        y, present_key, present_value = op.PagedAttention(
            query,
            key,
            value,
            cache.key,
            cache.value,
            rows.cumulative_lengths,
            rows.past_lengths,
            rows.block_table,
            rows.cos,
            rows.sin,
            None,
            self.attention_sink_bias,
            self.q_norm(op),
            self.k_norm(op),
            None,
            None,
            rows.attention_metadata,
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            is_causal=int(self.attention.causal),
            do_rotary=1,
            qk_norm_epsilon=self.epsilon,
            **window,
            _outputs=3,
            **CONTRIB,
        )
        return self.o_proj(op, op.Gather(y, rows.block_row_index)), Cache(present_key, present_value)


class DraftLayer(nn.Module):
    """One layer: attention and feed-forward part, each behind a norm of the residual stream."""

    def __init__(self, config: DrafterConfig, attention: LayerAttention, style: Style) -> None:
        super().__init__()
        size, epsilon = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = ResidualNorm(size, epsilon, style)
        self.self_attn = BlockAttention(config, attention, style)
        self.post_attention_layernorm = ResidualNorm(size, epsilon, style)
        self.mlp = MLP(size, config.intermediate_size, style)

    def forward(
        self, op: OpBuilder, residual: ir.Value, branch: ir.Value | None, rows: Rows, cache: Cache
    ) -> tuple[ir.Value, ir.Value, Cache]:
        """The residual stream, the branch that the next norm will add to it, and the cache."""
        x, residual = self.input_layernorm(op, residual, branch)
        x, cache = self.attend(op, x, rows, cache)
        x, residual = self.post_attention_layernorm(op, residual, x)
        return residual, self.feed(op, x), cache

    def attend(self, op: OpBuilder, x: ir.Value, rows: Rows, cache: Cache) -> tuple[ir.Value, Cache]:
        """The attention sub-layer, ``[block rows, hidden]``."""
        return self.self_attn(op, x, rows, cache)

    def feed(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """The feed-forward sub-layer, ``[block rows, hidden]``."""
        return self.mlp(op, x)
