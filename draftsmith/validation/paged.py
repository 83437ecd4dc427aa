"""Paged attention on the CPU: onnxruntime's PagedAttention has no CPU kernel, so its body is written in ONNX operators.

The operator becomes a call of a function that the model carries itself, one for each combination of attributes and
inputs; onnxruntime puts the body in its place. What it computes, for row ``i`` of sequence ``b`` of a run:

- the position is ``p = past[b] + i``, for the rotary embedding and in the cache;
- keys and values are written to slot ``p % page`` of page ``block_table[b, p // page]``, before anything is read;
- it attends to positions ``j <= p`` of its own sequence (or to all of them, if it is not causal), within its window;
- with sinks, each head's softmax has one more logit, which has no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, build_function

DOMAIN = "draftsmith.cpu"
OPSET = 22
I64 = ir.DataType.INT64
_LOWEST = -3.0e38  # a score that softmax makes zero

# The operator's inputs by position.
INPUTS = (
    "query",
    "key",
    "value",
    "key_cache",
    "value_cache",
    "cumulative",
    "past",
    "block_table",
    "cos",
    "sin",
    "slot_mapping",
    "head_sink",
    "q_norm",
    "k_norm",
    "k_scale",
    "v_scale",
    "metadata",
)
_NOT_DONE = ("slot_mapping", "k_scale", "v_scale")
_TOGETHER = (("key", "value"), ("cos", "sin"), ("q_norm", "k_norm"))

# Attributes that are supported here only at their defaults.
_FIXED = {
    "softcap": 0.0,
    "rotary_interleaved": 0,
    "rotary_offset": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
    "k_cache_dtype": "",
    "v_cache_dtype": "",
    "kv_cache_layout": "SEPARATE",
    "v_head_size": 0,
}


@dataclass(frozen=True)
class Variant:
    """One combination of the operator's attributes and of the inputs that are present."""

    heads: int
    kv_heads: int
    scale: float
    window: int
    causal: bool
    rotary: bool
    epsilon: float
    present: tuple[bool, ...]

    def has(self, name: str) -> bool:
        """Whether an input is present."""
        return self.present[INPUTS.index(name)]


def lower_graph(model: ir.Model) -> None:
    """Replace every PagedAttention by a call to a function in the model that does the same in ONNX operators.

    Raises:
        ValueError: A node uses something that the functions do not support.
    """
    names: dict[Variant, str] = {}
    for node in model.graph:
        if (node.domain, node.op_type) != ("com.microsoft", "PagedAttention"):
            continue
        variant = _variant(node)
        if variant not in names:
            names[variant] = f"PagedAttention{len(names)}"
            function = _function(variant, names[variant])
            model.functions[function.identifier()] = function
        for extra in list(node.attributes):
            del node.attributes[extra]
        node.domain, node.op_type = DOMAIN, names[variant]
        node.resize_inputs(len(INPUTS))
    if names:
        model.graph.opset_imports[DOMAIN] = 1


def _variant(node: ir.Node) -> Variant:
    given: dict[str, Any] = {name: attribute.value for name, attribute in node.attributes.items()}
    present = tuple(i < len(node.inputs) and node.inputs[i] is not None for i in range(len(INPUTS)))
    refused = [name for name in _NOT_DONE if present[INPUTS.index(name)]]
    refused += [f"{a} and {b} apart" for a, b in _TOGETHER if present[INPUTS.index(a)] != present[INPUTS.index(b)]]
    refused += [name for name, default in _FIXED.items() if given.pop(name, default) != default]
    refused += [name for name in ("is_causal", "do_rotary") if given.get(name, 0) not in (0, 1)]
    variant = Variant(
        heads=given.pop("num_heads"),
        kv_heads=given.pop("kv_num_heads"),
        scale=given.pop("scale", 0.0),
        window=given.pop("local_window_size", -1),
        causal=given.pop("is_causal", 1) == 1,
        rotary=given.pop("do_rotary", 0) == 1,
        epsilon=given.pop("qk_norm_epsilon", 1e-6),
        present=present,
    )
    if variant.rotary and not variant.has("cos"):
        refused.append("do_rotary without cos and sin")
    if refused := [*refused, *given]:
        raise ValueError(f"{node.name}: PagedAttention with {', '.join(refused)} is not done on the CPU")
    return variant


def _function(variant: Variant, name: str) -> ir.Function:
    def body(op: OpBuilder, *inputs: ir.Value) -> Sequence[ir.Value]:
        return _attend(op, variant, dict(zip(INPUTS, inputs, strict=True)))

    values = [ir.Value(name=name) for name in INPUTS]
    return build_function(body, values, domain=DOMAIN, name=name, opset_imports={"": OPSET})


def _attend(op: OpBuilder, variant: Variant, given: Mapping[str, ir.Value]) -> Sequence[ir.Value]:
    """The body: the output ``[tokens, heads * dim]``, and the caches with the new rows."""
    pages, page, width = (op.Shape(given["key_cache"], start=i, end=i + 1) for i in (0, 1, 3))
    rows = _Rows(op, given)
    query, key, value = _heads(op, variant, given, width)
    if variant.has("q_norm"):
        query = _rms_norm(op, query, given["q_norm"], variant.epsilon)
        key = _rms_norm(op, key, given["k_norm"], variant.epsilon)
    if variant.rotary:
        cos, sin = (op.Unsqueeze(op.Gather(given[t], rows.position), [1]) for t in ("cos", "sin"))
        query, key = (_rotate(op, x, cos, sin) for x in (query, key))
    slots = _slots(op, rows.table, page)
    flat = op.Concat(op.Mul(pages, page), op.Shape(given["key_cache"], start=2, end=4), axis=0)
    own = op.GatherND(slots, op.Concat(*(op.Unsqueeze(x, [1]) for x in (rows.sequence, rows.position)), axis=1))
    mapped = op.GreaterOrEqual(own, 0)  # a row without a page is not written; to ScatterND, -1 would be the last slot
    caches = [
        op.ScatterND(
            op.Reshape(given[cache], flat),
            op.Unsqueeze(op.Compress(own, mapped, axis=0), [1]),
            op.Compress(new, mapped, axis=0),
        )
        for cache, new in (("key_cache", key), ("value_cache", value))
    ]
    keys, values = (op.Gather(cache, op.Reshape(op.Max(slots, 0), [-1])) for cache in caches)
    sink = given["head_sink"] if variant.has("head_sink") else None
    y = _softmax_attention(op, variant, query, keys, values, _mask(op, variant, rows, slots), width, sink)
    # The runtime binds a cache and its new value to one buffer: it is written last, when nothing reads the old one.
    presents = [
        op.Reshape(cache, op.Shape(given[name]))
        for cache, name in zip(caches, ("key_cache", "value_cache"), strict=True)
    ]
    return [y, *presents]


class _Rows:
    """Which sequence each row belongs to, and its place in it.

    Attributes:
        sequence: ``[tokens]``, the sequence of each row.
        position: ``[tokens]``, its position.
        length: ``[batch]``, each sequence's length with the new rows.
        table: ``[batch, columns]``, the block table as int64.
    """

    def __init__(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> None:
        cumulative, past = (op.Cast(given[name], to=I64) for name in ("cumulative", "past"))
        begin, end = op.Slice(cumulative, [0], [-1]), op.Slice(cumulative, [1], [2**31])
        tokens = op.Range(0, op.Squeeze(op.Shape(given["query"], start=0, end=1)), 1)
        ended = op.LessOrEqual(op.Unsqueeze(end, [0]), op.Unsqueeze(tokens, [1]))
        self.sequence = op.ReduceSum(op.Cast(ended, to=I64), [1], keepdims=0)
        self.position = op.Add(op.Gather(past, self.sequence), op.Sub(tokens, op.Gather(begin, self.sequence)))
        self.length = op.Add(past, op.Sub(end, begin))
        self.table = op.Cast(given["block_table"], to=I64)


def _heads(
    op: OpBuilder, variant: Variant, given: Mapping[str, ir.Value], width: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values, ``[tokens, heads, dim]``."""
    parts = [given["query"], given["key"], given["value"]]
    if not variant.has("key"):
        counts = [variant.heads, variant.kv_heads, variant.kv_heads]
        parts = list(op.Split(given["query"], op.Mul(width, counts), axis=1, _outputs=3))
    query, key, value = (
        op.Reshape(part, op.Concat([0, count], width, axis=0))
        for part, count in zip(parts, (variant.heads, variant.kv_heads, variant.kv_heads), strict=True)
    )
    return query, key, value


def _rms_norm(op: OpBuilder, x: ir.Value, weight: ir.Value, epsilon: float) -> ir.Value:
    square = op.ReduceMean(op.Mul(x, x), [-1], keepdims=1)
    return op.Mul(op.Div(x, op.Sqrt(op.Add(square, op.Constant(value_float=epsilon)))), weight)


def _rotate(op: OpBuilder, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
    """The first ``2 * columns`` channels rotated, half against half; the rest unchanged."""
    half = op.Shape(cos, start=2, end=3)
    a, rest = _cut(op, x, half)
    b, rest = _cut(op, rest, half)
    return op.Concat(op.Sub(op.Mul(a, cos), op.Mul(b, sin)), op.Add(op.Mul(b, cos), op.Mul(a, sin)), rest, axis=-1)


def _cut(op: OpBuilder, x: ir.Value, at: ir.Value) -> tuple[ir.Value, ir.Value]:
    return op.Slice(x, [0], at, [-1]), op.Slice(x, at, [2**31], [-1])


def _slots(op: OpBuilder, table: ir.Value, page: ir.Value) -> ir.Value:
    """Where each position of each sequence stands in the flat cache, ``[batch, columns * page]``; -1 if nowhere."""
    offsets = op.Range(0, op.Squeeze(page), 1)
    slots = op.Add(op.Unsqueeze(op.Mul(table, page), [2]), offsets)
    mapped = op.Where(op.Less(op.Unsqueeze(table, [2]), 0), [-1], slots)
    return op.Reshape(mapped, op.Concat(op.Shape(table, start=0, end=1), [-1], axis=0))


def _mask(op: OpBuilder, variant: Variant, rows: _Rows, slots: ir.Value) -> ir.Value:
    """Which cached positions each row sees, ``[tokens, batch * positions]``."""
    batch, positions = op.Shape(slots, start=0, end=1), op.Shape(slots, start=1, end=2)
    column = op.Range(0, op.Squeeze(op.Mul(batch, positions)), 1)
    owner, position = op.Div(column, positions), op.Mod(column, positions)
    sequence, own = op.Unsqueeze(rows.sequence, [1]), op.Unsqueeze(rows.position, [1])
    last = own if variant.causal else op.Sub(op.Gather(rows.length, sequence), [1])
    seen = op.And(op.Equal(owner, sequence), op.LessOrEqual(position, last))
    seen = op.And(seen, op.GreaterOrEqual(op.Reshape(slots, [-1]), 0))
    if variant.window > 0:
        seen = op.And(seen, op.Greater(position, op.Sub(own, variant.window)))
    return seen


def _softmax_attention(
    op: OpBuilder,
    variant: Variant,
    query: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    mask: ir.Value,
    width: ir.Value,
    sink: ir.Value | None,
) -> ir.Value:
    """Attention of ``[tokens, heads, dim]`` queries over ``[positions, kv heads, dim]``: ``[tokens, heads * dim]``.

    Head ``h`` reads kv head ``h // group``. Memory grows with tokens times cached positions.
    """
    group = variant.heads // variant.kv_heads
    scale = op.Constant(value_float=variant.scale) if variant.scale else op.Reciprocal(op.Sqrt(op.Cast(width, to=1)))
    grouped = op.Reshape(query, op.Concat([0, variant.kv_heads, group], width, axis=0))
    by_head = op.Transpose(op.Mul(grouped, scale), perm=[1, 2, 0, 3])
    keys = op.Unsqueeze(op.Transpose(keys, perm=[1, 2, 0]), [1])
    # What no row sees may be anything, like fresh memory: a weight of zero would not hide a NaN or an infinity.
    anyone = op.Reshape(op.ReduceMax(mask, [0], keepdims=0), [-1, 1, 1])
    values = op.Where(anyone, values, op.Constant(value_float=0.0))
    values = op.Unsqueeze(op.Transpose(values, perm=[1, 0, 2]), [1])
    scores = op.Where(mask, op.MatMul(by_head, keys), op.Constant(value_float=_LOWEST))
    if sink is None:
        shares = op.Softmax(scores, axis=-1)
    else:
        columns = op.Concat(op.Shape(scores, start=0, end=3), [1], axis=0)
        extra = op.Expand(op.Reshape(sink, [variant.kv_heads, group, 1, 1]), columns)
        shares = op.Softmax(op.Concat(scores, extra, axis=-1), axis=-1)
        shares = op.Slice(shares, [0], op.Shape(scores, start=3, end=4), [3])
    y = op.MatMul(shares, values)
    return op.Reshape(op.Transpose(y, perm=[2, 0, 1, 3]), op.Concat([0], op.Mul(width, [variant.heads]), axis=0))
