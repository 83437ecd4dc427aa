"""How large the values inside a graph become: outputs that report, for each layer, the largest one in a run.

Only values that the stored graph holds in its own 16-bit type count (or in float32, if that is its type): what it
computes in float32 on purpose may be larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

PREFIX = "largest."
_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT)
_LAYER = re.compile(r"layers[./](\d+)")


def with_ranges(lowered: Path, stored: ir.Graph, dtype: ir.DataType) -> Path:
    """Save a copy of a lowered graph next to it that outputs, for each layer, the largest magnitude among its values.

    Args:
        lowered: The lowered graph.
        stored: The graph as it is stored, whose types count.
        dtype: The type whose values are considered.
    """
    types = value_types(stored)
    model = ir.load(lowered)
    graph = model.graph
    places: dict[str, list[ir.Value]] = {}
    for node in list(graph):
        for output in node.outputs:
            if types.get(str(output.name)) == dtype and _is_activation(output):
                places.setdefault(_place(str(node.name)), []).append(output)
    for place, values in places.items():
        graph.outputs.append(_largest(graph, place, values))
    probed = lowered.with_name(f"ranges-{lowered.name}")
    ir.save(model, probed)
    return probed


def take_ranges(results: dict[str, Any], largest: dict[str, float]) -> None:
    """Remove such a graph's extra outputs from its results, and note the largest so far by place."""
    for name in [name for name in results if name.startswith(PREFIX)]:
        value, place = float(np.max(results.pop(name))), name.removeprefix(PREFIX)
        largest[place] = max(largest.get(place, 0.0), value if np.isfinite(value) else np.inf)


def value_types(graph: ir.Graph) -> dict[str, ir.DataType]:
    """The element types of a graph's floating-point values: what a Cast says, else the type of the first such input.

    The operators of these graphs keep their input's type. Types that the graph itself declares come first.
    """
    known = {str(v.name): v.dtype for v in (*graph.inputs, *graph.outputs, *graph.initializers.values()) if v.dtype}
    for node in graph:
        given = next((known[str(v.name)] for v in node.inputs if v is not None and str(v.name) in known
                      and known[str(v.name)] in _FLOATS), None)  # fmt: skip
        to = node.attributes.get("to")
        found = ir.DataType(to.as_int()) if node.op_type == "Cast" and to is not None else given
        for output in node.outputs:
            dtype = output.dtype or found
            if output.name and dtype is not None:
                known.setdefault(str(output.name), dtype)
    return known


def _is_activation(value: ir.Value) -> bool:
    """Whether a value is read or is an output. Caches and states do not count: they also hold earlier values."""
    name = str(value.name)
    return bool(value.uses() or value.is_graph_output()) and not name.startswith(("present", "state_update"))


def _place(node: str) -> str:
    """The layer that a node belongs to."""
    layer = _LAYER.search(node)
    if layer:
        return f"layer {layer[1]}"
    return "embedding" if "embed" in node else "head"


def _largest(graph: ir.Graph, place: str, values: list[ir.Value]) -> ir.Value:
    """Add nodes that reduce values to one number, the largest magnitude of all; returns their result."""

    def add(kind: str, inputs: list[ir.Value], **attributes: int) -> ir.Value:
        node = ir.node(kind, inputs, attributes=attributes)
        node.outputs[0].name = f"{PREFIX}{place}.{len(names)}"
        names.append(str(node.outputs[0].name))
        node.name = f"node.{names[-1]}"
        graph.append(node)
        return node.outputs[0]

    names: list[str] = []
    tops = [add("ReduceMax", [add("Abs", [value])], keepdims=0) for value in values]
    top = add("Max", tops)
    top.name, top.type, top.shape = f"{PREFIX}{place}", ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
    return top


def in_order(largest: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Places from the bottom up."""
    order = {"embedding": -1, "head": 1 << 30}
    for place in sorted(largest, key=lambda place: order.get(place, int([*place.split(), "0"][1]))):
        yield place, largest[place]
