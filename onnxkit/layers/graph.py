"""What all graphs here have in common: the opsets that they use, casts, and how their outputs are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

F32, I32, I64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
BF16 = ir.DataType.BFLOAT16

# The opsets that the graphs use: those that onnxruntime 1.31 and 1.32 both have.
OPSETS = {"": 22, "com.microsoft": 1}
IR_VERSION = 10

# onnxruntime's own operators, as keyword arguments of a call.
CONTRIB: Mapping[str, Any] = {"_domain": "com.microsoft"}

# Element type and shape; a name stands for a size that varies.
Type = tuple[ir.DataType, Sequence[int | str]]


class Outputs(list[ir.Value]):
    """A graph's outputs, in order."""

    def add(self, name: str, value: ir.Value, dtype: ir.DataType, shape: Sequence[int | str]) -> None:
        """Append a value under its name in the graph, with its type."""
        value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)
        self.append(value)


def empty_graph(name: str) -> ir.Graph:
    """An empty graph to build in."""
    return ir.Graph([], [], nodes=[], opset_imports=dict(OPSETS), name=name)


def cast(op: OpBuilder, x: ir.Value, source: ir.DataType, target: ir.DataType) -> ir.Value:
    """``x`` in another element type; no node if the types agree."""
    return x if source == target else op.Cast(x, to=target)
