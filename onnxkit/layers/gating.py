"""Gates: a value times the activation of another."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.layers.graph import BF16, CONTRIB
from onnxkit.layers.precision import Precision
from onnxkit.weights.parameters import Table

# So large that any mean is negligible beside it. 2^80 is the square of 2^40; bf16 and float32 hold both exactly.
DOMINANT_EPSILON = 2.0**80


class Gated(nn.Module):
    """A value times the activation of its gate, element by element: ``x * silu(gate)`` or ``x * sigmoid(gate)``.

    In bf16, which is for GPUs only, it is one kernel: GatedRMSNorm gives ``x * rsqrt(mean(x^2) + epsilon) * scale *
    activation(gate)`` in float32, and with an epsilon of 2^80 and a scale of 2^40 the mean vanishes and the factors
    cancel. float16 holds no such scale; there, and in float32, the activation and the product are nodes of their own.

    Args:
        width: The size of the last axis.
        precision: The graph's precision.
        activation: ``silu`` or ``sigmoid``.
    """

    def __init__(self, width: int, precision: Precision, activation: str = "silu") -> None:
        super().__init__()
        self.activation, self.fused = activation, precision.activations == BF16
        if self.fused:
            value = np.full((1, math.gcd(width, 256)), DOMINANT_EPSILON**0.5, np.float32)
            self.scale = Table("scale", value.shape[1:], precision.activations, lambda start, stop: value[start:stop])

    def forward(self, op: OpBuilder, x: ir.Value, gate: ir.Value) -> ir.Value:
        """``[tokens, width]`` twice -> the same."""
        if self.fused:
            return op.GatedRMSNorm(x, self.scale, gate, activation=self.activation, epsilon=DOMINANT_EPSILON, **CONTRIB)
        factor = op.Sigmoid(gate)
        return op.Mul(op.Mul(gate, factor), x) if self.activation == "silu" else op.Mul(x, factor)
