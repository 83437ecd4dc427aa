"""Rotary position embedding: the tables of cosines and sines."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.layers.precision import Precision
from onnxkit.rotary import Rotary
from onnxkit.weights.parameters import Table


class RotaryTables(nn.Module):
    """The cosines and sines of every position of a context, ``[context, dim / 2]`` each."""

    def __init__(self, rotary: Rotary, context_length: int, precision: Precision) -> None:
        super().__init__()
        shape = [context_length, rotary.dim // 2]
        self.cos = Table("cos", shape, precision.activations, rotary.cos)
        self.sin = Table("sin", shape, precision.activations, rotary.sin)

    def forward(self, op: OpBuilder) -> tuple[ir.Value, ir.Value]:
        """The two tables."""
        return self.cos, self.sin
