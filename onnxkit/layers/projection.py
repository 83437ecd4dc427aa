"""Everything that multiplies by a matrix of weights, or reads rows of one. ``x`` is ``[tokens, features]``.

How a matrix is held is up to its format; these modules know the names, what is stacked, and which element types
meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.layers.graph import cast
from onnxkit.layers.precision import Precision
from onnxkit.layers.weight_format import Dense, Matrix
from onnxkit.weights.parameters import Rows, Source, Weight

_H = TypeVar("_H", bound=Matrix | nn.Module)


def declared_by(module: nn.Module, held: _H) -> _H:
    """Declare the initializers of a matrix, or of a module without a name, along with those of ``module``.

    Otherwise a module's initializers are declared when it is first called. They are written in order of declaration.
    """
    for parameter in held.parameters():
        setattr(module, str(parameter.name), parameter)  # this is how a module learns of a parameter
    return held


class Product(nn.Module):
    """Multiplication by a matrix, ``x @ W^T + b``. It has no name of its own.

    Args:
        matrix: The matrix, ``[out, in]``.
        precision: The element type of ``x`` and of the result, and the matrix's format.
        bias: The bias, in the format's element type, if there is one.
    """

    def __init__(
        self, matrix: Matrix, precision: Precision, bias: nn.Parameter | None = None, name: str | None = ""
    ) -> None:
        super().__init__(name)
        self.precision = precision
        self.matrix = declared_by(self, matrix)
        self.bias = bias

    def forward(self, op: OpBuilder, x: ir.Value, into: ir.DataType | None = None) -> ir.Value:
        """``[tokens, in] -> [tokens, out]``; with ``into`` the result has that element type."""
        outer, inner = self.precision.activations, self.precision.weights.dtype
        y = self.matrix.product(op, cast(op, x, outer, inner), self.bias)
        return cast(op, y, inner, into or outer)


class Linear(Product):
    """A projection, with its weight in the checkpoint's order ``[out, in]``; without a bias unless requested."""

    def __init__(self, in_features: int, out_features: int, precision: Precision, *, bias: bool = False) -> None:
        weights = precision.weights
        matrix = weights.matrix("weight", (out_features, in_features))
        super().__init__(matrix, precision, Weight("bias", [out_features], weights.dtype) if bias else None, None)


class StackedLinear(nn.Module):
    """Projections of one input as one node over rows written one after another; returns one value per part.

    It has no name of its own: its parts are children of the module that holds it, as they are in the checkpoint.

    Args:
        in_features: The width of the input.
        parts: The rows of each part. If the format does not stack, each part must be one whole tensor.
        precision: The graph's precision.
        bias: Whether each projection has a bias.
    """

    def __init__(
        self, in_features: int, parts: Sequence[Sequence[Rows]], precision: Precision, *, bias: bool = False
    ) -> None:
        super().__init__(name="")
        self.sizes = [sum(rows.count for rows in part) for part in parts]
        self.stacked = precision.weights.stacked
        if self.stacked:
            self.product = _stack(in_features, [rows for part in parts for rows in part], precision, bias)
        else:
            self.projections = []
            for (rows,), size in zip(parts, self.sizes, strict=True):
                projection = Linear(in_features, size, precision, bias=bias)
                setattr(self, rows.name.removesuffix(".weight"), projection)  # names the child, and registers it
                self.projections.append(projection)

    def forward(self, op: OpBuilder, x: ir.Value) -> Sequence[ir.Value]:
        """``[tokens, in]`` -> one ``[tokens, size]`` per part."""
        if not self.stacked:
            return [projection(op, x) for projection in self.projections]
        y = self.product(op, x)
        if len(self.sizes) == 1:
            return [y]
        return op.Split(y, self.sizes, axis=-1, _outputs=len(self.sizes))


def _stack(in_features: int, sources: Sequence[Rows], precision: Precision, bias: bool) -> Product:
    """The rows of several projections as one matrix, and their biases as one."""
    stems = [rows.name.removesuffix(".weight") for rows in sources]
    name = "+".join(dict.fromkeys(stems))
    size, weights = sum(rows.count for rows in sources), precision.weights
    biases = [replace(rows, name=f"{stem}.bias") for rows, stem in zip(sources, stems, strict=True)]
    return Product(
        weights.matrix(f"{name}.weight", (size, in_features), sources),
        precision,
        Weight(f"{name}.bias", [size], weights.dtype, Source(tuple(biases))) if bias else None,
    )


def whole(name: str, size: int) -> list[Rows]:
    """All rows of the projection ``name`` as one part of a :class:`StackedLinear`."""
    return [Rows(f"{name}.weight", size)]


class Lookup(nn.Module):
    """Rows of a table by index. It has no name of its own.

    Args:
        matrix: The table, ``[indices, width]``.
        precision: The element type of the returned rows, and the table's format.
    """

    def __init__(self, matrix: Matrix, precision: Precision, name: str | None = "") -> None:
        super().__init__(name)
        self.precision = precision
        self.matrix = declared_by(self, matrix)

    def forward(self, op: OpBuilder, indices: ir.Value, into: ir.DataType | None = None) -> ir.Value:
        """``[...] -> [..., width]``; with ``into`` the rows have that element type."""
        rows = self.matrix.rows(op, indices)
        return cast(op, rows, self.precision.weights.dtype, into or self.precision.activations)


class Embedding(Lookup):
    """Rows of a table by token id."""

    def __init__(self, vocab_size: int, width: int, precision: Precision) -> None:
        super().__init__(precision.weights.matrix("weight", (vocab_size, width)), precision, None)


class LMHead(Product):
    """Logits over the vocabulary, ``[rows, hidden] -> [rows, vocab]``.

    If tied, it multiplies by the embedding's table, which is then written only once.
    """

    def __init__(self, hidden_size: int, vocab_size: int, precision: Precision, tied: Embedding | None) -> None:
        matrix = tied.matrix if tied else precision.weights.matrix("weight", (vocab_size, hidden_size))
        super().__init__(matrix, precision, None, None)


class JointLinear(nn.Module):
    """``W [x; e] + b`` for one ``x`` and many ``e``: ``W`` is split by columns, so that ``W x`` is computed once.

    That requires a dense matrix, whatever format the others have; its products use an element type of their own.

    Args:
        widths: The widths of ``x`` and of ``e``.
        out_features: The width of the result.
        activations: The element type of ``x``.
        dtype: The element type of the weights, of ``e`` and of the result.
    """

    def __init__(
        self, widths: tuple[int, int], out_features: int, activations: ir.DataType, dtype: ir.DataType
    ) -> None:
        super().__init__(name="")
        self.widths, self.activations, self.dtype = widths, activations, dtype
        self.matrix = declared_by(self, Dense(dtype).matrix("weight", (out_features, sum(widths))))
        self.bias = Weight("bias", [out_features], dtype)

    def forward(self, op: OpBuilder, x: ir.Value, each: ir.Value) -> tuple[ir.Value, ir.Value]:
        """``[tokens, x]`` and ``[..., e]`` -> ``[tokens, out]``, with the bias, and ``[..., out]``: add the two."""
        for_x, for_each = self.matrix.columns(op, self.widths)
        once = for_x.product(op, cast(op, x, self.activations, self.dtype), self.bias)
        return once, for_each.product_of_each(op, each)
