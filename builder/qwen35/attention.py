"""Full attention: grouped queries with q/k norm, partial rotary embedding and an output gate."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from builder.qwen35.config import TargetConfig
from builder.qwen35.layout import DenseRun, PackedRun
from onnxkit.layers.gating import Gated
from onnxkit.layers.graph import CONTRIB
from onnxkit.layers.kv_cache import KeyValueCache
from onnxkit.layers.norms import NormWeight, RMSNorm
from onnxkit.layers.paged_attention import Heads, paged_attention
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Linear, StackedLinear, whole
from onnxkit.weights.parameters import PLUS_ONE, Rows


class Projections(nn.Module):
    """Queries, keys, values and the output gate from one input; ``packed`` leaves the first three in one value.

    ``q_proj`` holds, head by head, the rows of a query and then those of its gate. Stacked, its rows are put in order
    on the way to disk; otherwise the graph takes them apart.
    """

    def __init__(self, config: TargetConfig, precision: Precision, packed: bool) -> None:
        super().__init__(name="")
        self.heads, self.dim = config.num_attention_heads, config.head_dim
        self.stacked, self.packed = precision.weights.stacked, packed and precision.weights.stacked
        kv_width = config.num_key_value_heads * self.dim
        q_rows = 2 * self.heads * self.dim
        key, value = whole("k_proj", kv_width), whole("v_proj", kv_width)
        if self.stacked:
            starts = range(0, q_rows, 2 * self.dim)
            query = [Rows("q_proj.weight", q_rows, tuple((s, s + self.dim) for s in starts))]
            gate = [Rows("q_proj.weight", q_rows, tuple((s + self.dim, s + 2 * self.dim) for s in starts))]
            parts: Sequence[Sequence[Rows]] = [query + key + value, gate] if packed else [query, key, value, gate]
        else:
            parts = [whole("q_proj", q_rows), key, value]
        self.rows = StackedLinear(config.hidden_size, parts, precision)

    def forward(self, op: OpBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value | None, ir.Value | None, ir.Value]:
        """``[tokens, hidden]`` -> queries, keys, values, gate, each ``[tokens, heads * head_dim]``.

        Packed and stacked, the first holds queries, keys and values side by side, and there are no others.
        """
        if self.packed:
            qkv, gate = self.rows(op, x)
            return qkv, None, None, gate
        if self.stacked:
            query, key, value, gate = self.rows(op, x)
            return query, key, value, gate
        both, key, value = self.rows(op, x)
        by_head = op.Reshape(both, [-1, self.heads, 2 * self.dim])
        query, gate = (
            op.Reshape(half, [-1, self.heads * self.dim])
            for half in op.Split(by_head, [self.dim, self.dim], axis=-1, _outputs=2)
        )
        return query, key, value, gate


class DenseAttention(nn.Module):
    """Attention of the dense layout, on GroupQueryAttention with its own rotary embedding.

    q/k norms are nodes of their own: the CPU kernel takes none.
    """

    def __init__(self, config: TargetConfig, precision: Precision) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.projections = Projections(config, precision, packed=False)
        self.q_norm = RMSNorm(self.dim, config.rms_norm_eps, precision, PLUS_ONE)
        self.k_norm = RMSNorm(self.dim, config.rms_norm_eps, precision, PLUS_ONE)
        self.gated = Gated(self.heads * self.dim, precision, "sigmoid")
        self.o_proj = Linear(self.heads * self.dim, config.hidden_size, precision)

    def forward(
        self, op: OpBuilder, x: ir.Value, run: DenseRun, cache: KeyValueCache
    ) -> tuple[ir.Value, KeyValueCache]:
        """``[tokens, hidden] -> [tokens, hidden]``, and the cache with the new tokens."""
        query, key, value, gate = self.projections(op, x)
        y, present_key, present_value = op.GroupQueryAttention(
            op.Reshape(self.q_norm(op, op.Reshape(query, [-1, self.dim])), run.rows),
            op.Reshape(self.k_norm(op, op.Reshape(key, [-1, self.dim])), run.rows),
            op.Reshape(value, run.rows),
            cache.key,
            cache.value,
            run.last_position,
            run.total_length,
            run.cos,
            run.sin,
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            do_rotary=1,
            _outputs=3,
            **CONTRIB,
        )
        y = op.Reshape(y, [-1, self.heads * self.dim])
        return self.o_proj(op, self.gated(op, y, gate)), KeyValueCache(present_key, present_value)


class PackedAttention(nn.Module):
    """Attention of the packed layout: one operator norms and rotates queries and keys, fills the pages, and attends."""

    def __init__(self, config: TargetConfig, precision: Precision) -> None:
        super().__init__()
        self.heads, width = (
            Heads(config.num_attention_heads, config.num_key_value_heads),
            config.num_attention_heads * config.head_dim,
        )
        self.epsilon = config.rms_norm_eps
        self.projections = Projections(config, precision, packed=True)
        self.q_norm, self.k_norm = (NormWeight(config.head_dim, precision, PLUS_ONE) for _ in range(2))
        self.gated = Gated(width, precision, "sigmoid")
        self.o_proj = Linear(width, config.hidden_size, precision)

    def forward(
        self, op: OpBuilder, x: ir.Value, run: PackedRun, cache: KeyValueCache
    ) -> tuple[ir.Value, KeyValueCache]:
        """``[tokens, hidden] -> [tokens, hidden]``, and the cache, whose pages are filled in place."""
        query, key, value, gate = self.projections(op, x)
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
        )
        return self.o_proj(op, self.gated(op, y, gate)), cache
