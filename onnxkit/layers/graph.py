"""What all graphs here have in common: the opsets they are written in, and how their outputs are named."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

F32, I32, I64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
BF16 = ir.DataType.BFLOAT16

# The opsets that the graphs are written in: what onnxruntime 1.31 and 1.32 both have.
OPSETS = {"": 22, "com.microsoft": 1}
IR_VERSION = 10

# Element type and shape; a name stands for a size that varies.
Type = tuple[ir.DataType, Sequence[int | str]]


class Outputs(list[ir.Value]):
    """A graph's outputs, in order."""

    def add(self, name: str, value: ir.Value, dtype: ir.DataType, shape: Sequence[int | str]) -> None:
        """Append a value under its name in the graph, with its type."""
        value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)
        self.append(value)


def empty_graph(name: str) -> ir.Graph:
    """A graph to build into."""
    return ir.Graph([], [], nodes=[], opset_imports=dict(OPSETS), name=name)
