"""Parameters that carry where their bytes come from. The tensor plan falls out of walking them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from onnxkit.weights.streamed import Math


@dataclass(frozen=True)
class Transform:
    """Elementwise math on the way to disk, done in float32. ``math`` None leaves the bytes as they are."""

    name: str
    math: Math | None = None


AS_IS = Transform("as it is")
PLUS_ONE = Transform("1 + w", lambda w: w + np.float32(1))
# In float64: rounded to float32 once, it has the same bytes on every machine, which exponentials in float32 have not.
NEG_EXP = Transform("-exp(w)", lambda w: (-np.exp(w.astype(np.float64))).astype(np.float32))


@dataclass(frozen=True)
class Rows:
    """Rows of one stored tensor.

    Args:
        name: The tensor's name, relative to the module that declares the parameter.
        size: How many rows the stored tensor has (its other dimensions are the parameter's).
        ranges: The row ranges ``[start, stop)`` to take, in their order; None takes all of them.
    """

    name: str
    size: int
    ranges: tuple[tuple[int, int], ...] | None = None

    @property
    def taken(self) -> tuple[tuple[int, int], ...]:
        """The row ranges to take."""
        return self.ranges if self.ranges is not None else ((0, self.size),)

    @property
    def count(self) -> int:
        """How many rows are taken."""
        return sum(stop - start for start, stop in self.taken)


class Weight(nn.Parameter):
    """An initializer made of rows of stored tensors, written one after another.

    Args:
        name: The name relative to the declaring module; also that of the stored tensor unless ``sources`` says more.
        shape: The shape in the graph. All dimensions but the first are those of every source.
        dtype: The element type in the graph; sources of another type are cast.
        sources: The rows that it is made of; None means the whole tensor of the same name.
        transform: What is done to every element.
        stored_shape: The shape of the one stored tensor, where the graph reads its elements in another shape.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: ir.DataType,
        sources: Sequence[Rows] | None = None,
        transform: Transform = AS_IS,
        stored_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype, name=name)
        self.local_name = name
        self.dims = tuple(shape)
        self.sources = tuple(sources) if sources is not None else (Rows(name, shape[0]),)
        self.transform = transform
        self.stored_shape = tuple(stored_shape) if stored_shape is not None else None
        if sum(rows.count for rows in self.sources) != shape[0]:
            raise ValueError(f"{name}: {self.sources} do not make up {shape[0]} rows")

    def source_names(self) -> list[str]:
        """The full names of its sources, once the graph is built (and the parameter has its own full name)."""
        scope = str(self.name).removesuffix(self.local_name)
        return [scope + rows.name for rows in self.sources]


class Table(nn.Parameter):
    """An initializer that is computed: a table of rows, or a single row.

    Args:
        name: The name relative to the declaring module.
        shape: ``[rows, width]``, or ``[width]``.
        dtype: The element type in the graph.
        rows: Gives rows ``[start, stop)`` in float32, ``[stop - start, width]``.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: ir.DataType,
        rows: Callable[[int, int], np.ndarray[Any, Any]],
    ) -> None:
        super().__init__(shape, dtype=dtype, name=name)
        self.dims = tuple(shape)
        self.rows = rows


class Shared(nn.Parameter):
    """An initializer whose bytes stand in another graph's data file, where they are written.

    Args:
        name: Its name in both graphs, whole: the module that declares it must be the root.
        shape: Its shape.
        dtype: Its element type.
    """

    def __init__(self, name: str, shape: Sequence[int], dtype: ir.DataType) -> None:
        super().__init__(shape, dtype=dtype, name=name)
        self.byte_count = math.prod(shape) * int(dtype.itemsize)
