"""The precision of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxkit.layers.weight_format import Dense, WeightFormat


@dataclass(frozen=True)
class Precision:
    """What a graph, or part of one, computes in, and how it holds its weights.

    Attributes:
        activations: The element type of the values between layers, of norms, of convolutions and of rotary tables.
        weights: The format of projections, heads and tables of rows.
    """

    activations: ir.DataType
    weights: WeightFormat

    @classmethod
    def dense(cls, dtype: ir.DataType, *, stacked: bool = True) -> Precision:
        """Activations and weights of one element type."""
        return cls(dtype, Dense(dtype, stacked))
