"""Norms. They compute in float32, whatever the graph's precision."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.layers.graph import CONTRIB
from onnxkit.layers.precision import Precision
from onnxkit.weights.parameters import AS_IS, Table, Transform, Weight


def _rms_norm(op: OpBuilder, x: ir.Value, weight: ir.Value, epsilon: float) -> ir.Value:
    return op.SimplifiedLayerNormalization(x, weight, axis=-1, epsilon=epsilon, stash_type=1)


class RMSNorm(nn.Module):
    """Root mean square normalization over the last axis: ``x * rsqrt(mean(x^2) + epsilon) * w``, in float32."""

    def __init__(self, size: int, epsilon: float, precision: Precision, transform: Transform = AS_IS) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = Weight("weight", [size], precision.activations, transform=transform)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Any shape whose last axis is ``size``, kept."""
        return _rms_norm(op, x, self.weight, self.epsilon)


class ResidualNorm(nn.Module):
    """Adds a branch to the residual stream and normalizes the sum, as :class:`RMSNorm` does."""

    def __init__(self, size: int, epsilon: float, precision: Precision, transform: Transform = AS_IS) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = Weight("weight", [size], precision.activations, transform=transform)

    def forward(self, op: OpBuilder, residual: ir.Value, branch: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Return the normalized sum and the sum; without a branch, the stream itself is normalized."""
        if branch is None:
            return _rms_norm(op, residual, self.weight, self.epsilon), residual
        normed, _, _, total = op.SkipSimplifiedLayerNormalization(
            residual, branch, self.weight, epsilon=self.epsilon, _outputs=4, **CONTRIB
        )
        return normed, total


class NormWeight(nn.Module):
    """The weight of a norm that an operator applies."""

    def __init__(self, size: int, precision: Precision, transform: Transform = AS_IS) -> None:
        super().__init__()
        self.weight = Weight("weight", [size], precision.activations, transform=transform)

    def forward(self, op: OpBuilder) -> ir.Value:
        """``[size]``."""
        return self.weight


class L2Norm(nn.Module):
    """``x * rsqrt(sum(x^2) + epsilon)`` over the last axis, float32, as one node.

    With ``d`` the size of the axis, it is an RMS norm with weight ``1 / sqrt(d)`` and epsilon ``epsilon / d``.
    """

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon / size
        value = np.full((1, size), size**-0.5, np.float32)
        self.scale = Table("scale", [size], ir.DataType.FLOAT, lambda start, stop: value[start:stop])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Any shape whose last axis is ``size``, kept."""
        return _rms_norm(op, x, self.scale, self.epsilon)
