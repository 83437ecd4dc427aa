"""How weight matrices are held in a graph, and what multiplies by them: formats are known here and nowhere else.

A format declares a matrix: its initializers, one or more, and the two things that a graph does with it. Whatever has
weights goes through the modules of :mod:`onnxkit.layers.projection`, and those go through a matrix. So another format
(integer codes with scales and zero points, for MatMulNBits and GatherBlockQuantized) is one more pair of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.weights.parameters import Rows, Shared, Source, Weight


class Matrix(Protocol):
    """A matrix of weights, ``[rows, columns]``: a projection's ``[out, in]``, or a table with a row for each index."""

    def parameters(self) -> Sequence[nn.Parameter]:
        """Its initializers, in the order in which they are written."""

    def product(self, op: OpBuilder, x: ir.Value, bias: ir.Value | None) -> ir.Value:
        """``x @ W^T + bias``: ``[tokens, columns] -> [tokens, rows]``, all in the format's element type."""

    def rows(self, op: OpBuilder, indices: ir.Value) -> ir.Value:
        """Some of its rows, ``[...] -> [..., columns]``, in the format's element type."""


class WeightFormat(Protocol):
    """How the matrices of a graph are held."""

    @property
    def dtype(self) -> ir.DataType:
        """The element type that products are computed in, biases are written in, and rows come in."""

    @property
    def stacked(self) -> bool:
        """Whether projections of one input are written as one matrix, rows below rows.

        If not, each matrix is a stored tensor as it is. Links into a checkpoint need that, and so do weights that are
        already quantized, whose scales may differ.
        """

    def matrix(self, name: str, shape: tuple[int, int], sources: Sequence[Rows] | None = None) -> Matrix:
        """A matrix made of rows of stored tensors; None means the whole tensor of the same name.

        Args:
            name: The name relative to the declaring module. If a format has several initializers, it is their prefix.
            shape: Rows and columns.
            sources: The rows that it is made of, in order from the top.
        """

    def shared(self, name: str, shape: tuple[int, int]) -> Matrix:
        """A matrix of another graph, which has written it under this name and in this format."""


@dataclass(frozen=True)
class DenseMatrix:
    """A matrix as one initializer, or as another value of the graph."""

    weight: ir.Value

    def parameters(self) -> Sequence[nn.Parameter]:
        """The initializer, if it is one."""
        return [self.weight] if isinstance(self.weight, nn.Parameter) else []

    def product(self, op: OpBuilder, x: ir.Value, bias: ir.Value | None) -> ir.Value:
        """``x @ W^T + bias``."""
        return op.Gemm(x, self.weight, *([] if bias is None else [bias]), transB=1)

    def rows(self, op: OpBuilder, indices: ir.Value) -> ir.Value:
        """Some of its rows."""
        return op.Gather(self.weight, indices)

    def columns(self, op: OpBuilder, widths: Sequence[int]) -> list[DenseMatrix]:
        """Its columns as matrices of these widths, side by side."""
        return [DenseMatrix(part) for part in op.Split(self.weight, list(widths), axis=1, _outputs=len(widths))]

    def product_of_each(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """``x @ W^T`` with any dimensions before the last."""
        return op.MatMul(x, op.Transpose(self.weight, perm=[1, 0]))


@dataclass(frozen=True)
class Dense:
    """Every weight as a number of one element type.

    Attributes:
        dtype: The element type, which need not be that of the activations.
        stacked: Whether projections of one input are one matrix.
    """

    dtype: ir.DataType
    stacked: bool = True

    def matrix(self, name: str, shape: tuple[int, int], sources: Sequence[Rows] | None = None) -> DenseMatrix:
        """A matrix made of rows of stored tensors."""
        source = Source(tuple(sources), shape[1:]) if sources is not None else None
        return DenseMatrix(Weight(name, shape, self.dtype, source))

    def shared(self, name: str, shape: tuple[int, int]) -> DenseMatrix:
        """A matrix of another graph."""
        return DenseMatrix(Shared(name, shape, self.dtype))
