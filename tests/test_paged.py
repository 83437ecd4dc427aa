"""Paged attention in ONNX operators, against loops over rows and positions in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxscript import GraphBuilder

from draftsmith.validation.paged import INPUTS, lower_graph
from draftsmith.validation.session import Array
from onnxkit.layers.graph import CONTRIB

F32, I32 = ir.DataType.FLOAT, ir.DataType.INT32
HEADS, KV_HEADS, DIM, PAGE, PAGES, ROTATED = 6, 2, 16, 4, 10, 8  # three heads to a kv head, which is not 2


@dataclass(frozen=True)
class Case:
    """How the operator is used."""

    norm: bool = True
    rotary: bool = True
    packed: bool = True
    causal: bool = True
    window: int = -1
    scale: float = 0.0
    epsilon: float = 1e-6
    sink: bool = False


def session(case: Case, **attributes: Any) -> ort.InferenceSession:
    """A graph of the one operator, lowered."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 22, "com.microsoft": 1})
    builder = GraphBuilder(graph)
    width = (HEADS + 2 * KV_HEADS) * DIM if case.packed else HEADS * DIM
    cache = ["pages", PAGE, KV_HEADS, DIM]
    types: dict[str, tuple[ir.DataType, list[Any]]] = {"query": (F32, ["tokens", width])}
    if not case.packed:
        types |= {"key": (F32, ["tokens", KV_HEADS * DIM]), "value": (F32, ["tokens", KV_HEADS * DIM])}
    types |= {"key_cache": (F32, cache), "value_cache": (F32, cache)}
    types |= {"cumulative": (I32, ["b1"]), "past": (I32, ["b"]), "block_table": (I32, ["b", "columns"])}
    if case.rotary:
        types |= {"cos": (F32, ["context", ROTATED // 2]), "sin": (F32, ["context", ROTATED // 2])}
    if case.norm:
        types |= {"q_norm": (F32, [DIM]), "k_norm": (F32, [DIM])}
    if case.sink:
        types["head_sink"] = (F32, [HEADS])
    types["metadata"] = (I32, [3])
    values = {name: builder.input(name, *kind) for name, kind in types.items()}
    given: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": int(case.rotary)}
    given |= {"is_causal": int(case.causal), "local_window_size": case.window, "scale": case.scale}
    if case.norm:
        given["qk_norm_epsilon"] = case.epsilon
    outputs = builder.op.PagedAttention(*map(values.get, INPUTS), **(given | attributes), _outputs=3, **CONTRIB)
    for name, value in zip(("y", "keys", "values"), outputs, strict=True):
        value.name, value.type = name, ir.TensorType(F32)
        graph.outputs.append(value)
    model = ir.Model(graph, ir_version=10)
    lower_graph(model)
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])


class Reference:
    """Keys and values by sequence and position; every row attends on its own."""

    def __init__(self, case: Case, tables: dict[str, Array]) -> None:
        self.case, self.tables = case, tables
        self.seen: list[list[tuple[Array, Array]]] = [[], []]

    def prepared(self, x: Array, weight: str, position: int) -> Array:
        if self.case.norm:
            x = x / np.sqrt((x**2).mean() + self.case.epsilon) * self.tables[weight]
        if self.case.rotary:
            half = ROTATED // 2
            y = x.copy()
            for i in range(half):
                c, s = self.tables["cos"][position, i], self.tables["sin"][position, i]
                y[i], y[half + i] = x[i] * c - x[half + i] * s, x[half + i] * c + x[i] * s
            x = y
        return x

    def __call__(self, rows: list[Array]) -> Array:
        outputs = []
        for sequence, row in enumerate(rows):
            cached = self.seen[sequence]
            begin = len(cached)
            for i, token in enumerate(row):
                heads = token.reshape(-1, DIM)
                keys = [self.prepared(k, "k_norm", begin + i) for k in heads[HEADS : HEADS + KV_HEADS]]
                cached.append((np.stack(keys), heads[HEADS + KV_HEADS :]))
            for i, token in enumerate(row):
                outputs.append(self.attended(token.reshape(-1, DIM)[:HEADS], cached, begin + i))
        return np.stack(outputs)

    def attended(self, queries: Array, cached: list[tuple[Array, Array]], position: int) -> Array:
        last = position + 1 if self.case.causal else len(cached)
        first = max(0, position - self.case.window + 1) if self.case.window > 0 else 0
        result = []
        for head, query in enumerate(queries):
            kv = head // (HEADS // KV_HEADS)
            query = self.prepared(query, "q_norm", position)
            scores = [query @ keys[kv] * (self.case.scale or DIM**-0.5) for keys, _ in cached[first:last]]
            weights = np.exp(np.array(scores) - max(scores))
            mixed = sum(w * values[kv] for w, (_, values) in zip(weights, cached[first:last], strict=True))
            sink = np.exp(self.tables["head_sink"][head] - max(scores)) if self.case.sink else 0.0
            result.append(mixed / (weights.sum() + sink))
        return np.concatenate(result)


PLAIN = Case()
CASES = {
    "as the target uses it": PLAIN,
    "no norm": replace(PLAIN, norm=False),
    "no rotary": replace(PLAIN, rotary=False),
    "apart": replace(PLAIN, packed=False),
    "window": replace(PLAIN, window=3),
    "all rows of a run": replace(PLAIN, causal=False),
    "all rows, window": replace(PLAIN, causal=False, window=5, packed=False),
    "scale": replace(PLAIN, scale=0.4),
    "epsilon": replace(PLAIN, epsilon=1e-2),
    "sinks": replace(PLAIN, sink=True),
    "sinks, all rows, window": replace(PLAIN, sink=True, causal=False, window=5),
}


@pytest.mark.parametrize("garbage", [1e3, np.inf, np.nan])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_chunks_then_single_tokens(case: Case, garbage: float) -> None:
    """Two sequences of unequal length, pages in no order and full of garbage, boundaries inside chunks."""
    rng = np.random.default_rng(0)
    angles = rng.standard_normal((40, ROTATED // 2))
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    tables |= {name: rng.standard_normal(DIM) for name in ("q_norm", "k_norm")}
    tables["head_sink"] = 2 * rng.standard_normal(HEADS)
    tables = {name: table.astype(np.float32) for name, table in tables.items()}
    run, reference = session(case), Reference(case, tables)
    # Fresh memory may hold anything: what is not a number must not reach a result through a weight of zero.
    caches = [np.full((PAGES, PAGE, KV_HEADS, DIM), garbage, np.float32) for _ in range(2)]
    table = np.array([[7, 2, 9, 4], [0, 5, -1, -1]], np.int32)
    past = np.zeros(2, np.int32)
    wanted_inputs = {value.name for value in run.get_inputs()}
    for counts in [(6, 3), (5, 1), (1, 2), (1, 1)]:
        rows = [rng.standard_normal((n, (HEADS + 2 * KV_HEADS) * DIM), np.float32) for n in counts]
        stacked = np.concatenate(rows)
        feeds: dict[str, Array] = {"query": stacked}
        if not case.packed:
            cuts = np.cumsum([HEADS * DIM, KV_HEADS * DIM])
            feeds = dict(zip(("query", "key", "value"), np.split(stacked, cuts, axis=1), strict=True))
        feeds |= {"key_cache": caches[0], "value_cache": caches[1], "past": past, "block_table": table}
        feeds |= {"cumulative": np.cumsum([0, *counts]).astype(np.int32), "metadata": np.zeros(3, np.int32)} | tables
        y, *caches = run.run(None, {name: value for name, value in feeds.items() if name in wanted_inputs})
        assert np.abs(y - reference(rows)).max() < 2e-6
        past = past + np.array(counts, np.int32)
    slots = {(table[b, p // PAGE], p % PAGE) for b in range(2) for p in range(past[b])}
    for cache in caches:
        for page, slot in np.ndindex(PAGES, PAGE):
            unwritten = np.array_equal(cache[page, slot], np.full((KV_HEADS, DIM), garbage, np.float32), equal_nan=True)
            assert unwritten == ((page, slot) not in slots)


@pytest.mark.parametrize(
    "attributes",
    [
        {"softcap": 30.0},
        {"rotary_interleaved": 1},
        {"rotary_offset": 4},
        {"k_quant_type": "PER_TENSOR"},
        {"v_cache_dtype": "int8"},
        {"kv_cache_layout": "LATENT"},
        {"v_head_size": 8},
        {"is_causal": 2},
        {"an_attribute_of_tomorrow": 1},
    ],
)
def test_attributes_that_are_not_done_are_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(attributes))):
        session(PLAIN, **attributes)


@pytest.mark.parametrize(
    ("toggled", "expected"),
    [
        ("slot_mapping", "slot_mapping"),
        ("k_scale", "k_scale"),
        ("v_scale", "v_scale"),
        ("key", "key and value apart"),
        ("sin", "cos and sin apart"),
        ("q_norm", "q_norm and k_norm apart"),
        ("k_norm", "q_norm and k_norm apart"),
        ("cos sin", "do_rotary without cos and sin"),
    ],
)
def test_inputs_that_are_not_done_are_refused(toggled: str, expected: str) -> None:
    inputs = [ir.Value(name=name) for name in INPUTS]
    present = {"query", "key_cache", "value_cache", "cos", "sin", "q_norm", "k_norm"} ^ set(toggled.split())
    given = [value if value.name in present else None for value in inputs]
    attributes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1}
    node = ir.node("PagedAttention", given, attributes, domain="com.microsoft", num_outputs=3)
    with pytest.raises(ValueError, match=expected):
        lower_graph(ir.Model(ir.Graph(inputs, [], nodes=[node]), ir_version=10))


@pytest.mark.parametrize(("table", "past", "rows"), [([3, -1], PAGE - 1, 2), ([-1, 3], PAGE, 1)])
def test_unmapped_pages_are_neither_written_nor_read(table: list[int], past: int, rows: int) -> None:
    """They are skipped: neither the last page, which an index of -1 would be, nor the first one."""
    run = session(replace(PLAIN, norm=False, rotary=False))
    shape = (PAGES, PAGE, KV_HEADS, DIM)
    feeds: dict[str, Array] = {name: np.full(shape, 7, np.float32) for name in ("key_cache", "value_cache")}
    feeds |= {"query": np.ones((rows, (HEADS + 2 * KV_HEADS) * DIM), np.float32), "metadata": np.zeros(3, np.int32)}
    feeds |= {"cumulative": np.array([0, rows], np.int32), "past": np.array([past], np.int32)}
    y, *caches = run.run(None, feeds | {"block_table": np.array([table], np.int32)})
    for cache in caches:
        assert np.argwhere((cache == 1).any(axis=(2, 3))).tolist() == [[3, past % PAGE]]
    if table[0] < 0:
        assert np.abs(y - 1).max() < 2e-6  # the row sees itself alone
