"""Rotary position embedding: the tables of cosines and sines."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.layers.basic import Style
from onnxkit.rotary import Rotary
from onnxkit.weights.parameters import Table


class RotaryTables(nn.Module):
    """The cosines and sines of every position of a context, ``[context, dim / 2]`` each."""

    def __init__(self, rotary: Rotary, context_length: int, style: Style) -> None:
        super().__init__()
        shape = [context_length, rotary.dim // 2]
        self.cos = Table("cos", shape, style.dtype, rotary.cos)
        self.sin = Table("sin", shape, style.dtype, rotary.sin)

    def forward(self, op: OpBuilder) -> tuple[ir.Value, ir.Value]:
        """The two tables."""
        return self.cos, self.sin
