"""The layers that every model here is made of. ``x`` is ``[tokens, features]`` unless said otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.weights.parameters import AS_IS, Rows, Source, Table, Transform, Weight

# onnxruntime's own operators, as keyword arguments of a call.
CONTRIB: Mapping[str, Any] = {"_domain": "com.microsoft"}


@dataclass(frozen=True)
class Style:
    """Choices that hold for a whole graph.

    Attributes:
        dtype: The element type of weights and activations.
        stacked: Whether projections of one input are written as one weight. Off, each weight is a stored tensor as it
            is, which is what links into a checkpoint and pre-quantized weights need.
    """

    dtype: ir.DataType
    stacked: bool = True


class Linear(nn.Module):
    """A projection, its weight in the checkpoint's order ``[out, in]``; without bias, unless it is asked for."""

    def __init__(self, in_features: int, out_features: int, style: Style, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = Weight("weight", [out_features, in_features], style.dtype)
        self.bias = Weight("bias", [out_features], style.dtype) if bias else None

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """``[tokens, in] -> [tokens, out]``."""
        return op.Gemm(x, self.weight, *([] if self.bias is None else [self.bias]), transB=1)


class StackedLinear(nn.Module):
    """Projections of one input as one node over rows written one after another; gives one value per part.

    It has no name of its own: its parts are children of the module that holds it, as they are in the checkpoint.

    Args:
        in_features: The width of the input.
        parts: The rows of each part. Where the style does not stack, each part must be one whole tensor.
        style: The graph's style.
        bias: Whether each projection has a bias.
    """

    def __init__(self, in_features: int, parts: Sequence[Sequence[Rows]], style: Style, *, bias: bool = False) -> None:
        super().__init__(name="")
        self.sizes = [sum(rows.count for rows in part) for part in parts]
        self.stacked = style.stacked
        if self.stacked:
            sources = [rows for part in parts for rows in part]
            stems = dict.fromkeys(rows.name.removesuffix(".weight") for rows in sources)
            name = "+".join(stems) + ".weight"
            self.weight = Weight(
                name, [sum(self.sizes), in_features], style.dtype, Source(tuple(sources), (in_features,))
            )
            biases = [replace(rows, name=f"{rows.name.removesuffix('.weight')}.bias") for rows in sources]
            name = "+".join(stems) + ".bias"
            self.bias = Weight(name, [sum(self.sizes)], style.dtype, Source(tuple(biases))) if bias else None
        else:
            self.projections = []
            for (rows,), size in zip(parts, self.sizes, strict=True):
                projection = Linear(in_features, size, style, bias=bias)
                setattr(self, rows.name.removesuffix(".weight"), projection)  # names the child, and registers it
                self.projections.append(projection)

    def forward(self, op: OpBuilder, x: ir.Value) -> Sequence[ir.Value]:
        """``[tokens, in]`` -> one ``[tokens, size]`` per part."""
        if not self.stacked:
            return [projection(op, x) for projection in self.projections]
        y = op.Gemm(x, self.weight, *([] if self.bias is None else [self.bias]), transB=1)
        if len(self.sizes) == 1:
            return [y]
        return op.Split(y, self.sizes, axis=-1, _outputs=len(self.sizes))


def whole(name: str, size: int) -> list[Rows]:
    """All rows of the projection ``name`` as one part of a :class:`StackedLinear`."""
    return [Rows(f"{name}.weight", size)]


def _rms_norm(op: OpBuilder, x: ir.Value, weight: ir.Value, epsilon: float) -> ir.Value:
    return op.SimplifiedLayerNormalization(x, weight, axis=-1, epsilon=epsilon, stash_type=1)


class RMSNorm(nn.Module):
    """Root mean square normalization over the last axis: ``x * rsqrt(mean(x^2) + epsilon) * w``, in float32."""

    def __init__(self, size: int, epsilon: float, style: Style, transform: Transform = AS_IS) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = Weight("weight", [size], style.dtype, transform=transform)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Any shape whose last axis is ``size``, kept."""
        return _rms_norm(op, x, self.weight, self.epsilon)


class ResidualNorm(nn.Module):
    """Adds a branch to the residual stream and normalizes the sum, as :class:`RMSNorm` does."""

    def __init__(self, size: int, epsilon: float, style: Style, transform: Transform = AS_IS) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = Weight("weight", [size], style.dtype, transform=transform)

    def forward(self, op: OpBuilder, residual: ir.Value, branch: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Gives the normalized sum and the sum; without a branch the stream itself is normalized."""
        if branch is None:
            return _rms_norm(op, residual, self.weight, self.epsilon), residual
        normed, _, _, total = op.SkipSimplifiedLayerNormalization(
            residual, branch, self.weight, epsilon=self.epsilon, _outputs=4, **CONTRIB
        )
        return normed, total


class NormWeight(nn.Module):
    """The weight of a norm that an operator applies."""

    def __init__(self, size: int, style: Style, transform: Transform = AS_IS) -> None:
        super().__init__()
        self.weight = Weight("weight", [size], style.dtype, transform=transform)

    def forward(self, op: OpBuilder) -> ir.Value:
        """``[size]``."""
        return self.weight


class L2Norm(nn.Module):
    """``x * rsqrt(sum(x^2) + epsilon)`` over the last axis, float32, as one node.

    With ``d`` the axis' size it is an RMS norm of weight ``1 / sqrt(d)`` and epsilon ``epsilon / d``.
    """

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon / size
        value = np.full((1, size), size**-0.5, np.float32)
        self.scale = Table("scale", [size], ir.DataType.FLOAT, lambda start, stop: value[start:stop])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Any shape whose last axis is ``size``, kept."""
        return _rms_norm(op, x, self.scale, self.epsilon)


class Embedding(nn.Module):
    """Rows of a table by token id."""

    def __init__(self, vocab_size: int, hidden_size: int, style: Style) -> None:
        super().__init__()
        self.weight = Weight("weight", [vocab_size, hidden_size], style.dtype)

    def forward(self, op: OpBuilder, ids: ir.Value) -> ir.Value:
        """``[...] -> [..., hidden]``."""
        return op.Gather(self.weight, ids)


class LMHead(nn.Module):
    """Logits over the vocabulary. Tied, it reads the embedding's table, which is then written once."""

    def __init__(self, hidden_size: int, vocab_size: int, style: Style, tied: Embedding | None) -> None:
        super().__init__()
        self.weight = tied.weight if tied else Weight("weight", [vocab_size, hidden_size], style.dtype)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """``[rows, hidden] -> [rows, vocab]``."""
        return op.Gemm(x, self.weight, transB=1)


# 2^80, the square of 2^40; bf16 and float32 hold both exactly.
DROWNING = 2.0**80


class Gated(nn.Module):
    """A value times the activation of its gate, element by element: ``x * silu(gate)`` or ``x * sigmoid(gate)``.

    In bf16, which is for GPUs alone, it is one kernel: GatedRMSNorm gives ``x * rsqrt(mean(x^2) + epsilon) * scale *
    activation(gate)`` in float32, and with an epsilon of 2^80 and a scale of 2^40 the mean vanishes and the factors
    cancel. float16 holds no such scale; there, and in float32, the activation and the product are nodes of their own.

    Args:
        width: The size of the last axis.
        style: The graph's style.
        activation: ``silu`` or ``sigmoid``.
    """

    def __init__(self, width: int, style: Style, activation: str = "silu") -> None:
        super().__init__()
        self.activation, self.fused = activation, style.dtype == ir.DataType.BFLOAT16
        if self.fused:
            value = np.full((1, math.gcd(width, 256)), DROWNING**0.5, np.float32)
            self.scale = Table("scale", value.shape[1:], style.dtype, lambda start, stop: value[start:stop])

    def forward(self, op: OpBuilder, x: ir.Value, gate: ir.Value) -> ir.Value:
        """``[tokens, width]`` twice -> the same."""
        if self.fused:
            return op.GatedRMSNorm(x, self.scale, gate, activation=self.activation, epsilon=DROWNING, **CONTRIB)
        factor = op.Sigmoid(gate)
        return op.Mul(op.Mul(gate, factor), x) if self.activation == "silu" else op.Mul(x, factor)


def cast(op: OpBuilder, x: ir.Value, source: ir.DataType, target: ir.DataType) -> ir.Value:
    """``x`` in another element type; no node where the types agree."""
    return x if source == target else op.Cast(x, to=target)
