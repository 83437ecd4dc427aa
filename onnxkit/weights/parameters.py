"""Parameters that record where their bytes come from. Walking them gives the tensor plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import nn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Transform:
    """What is done to stored rows on the way to disk.

    Attributes:
        name: What it does, for human readers.
        rows: Takes whole rows in float32, ``[rows, width]``, and returns one or more arrays, each with as many rows.
            None leaves the bytes as they are. Rows come in blocks: a row's result must not depend on any other row.
    """

    name: str
    rows: Callable[[Array], Sequence[Array]] | None = None

    def outputs(self, block: Array) -> Sequence[Array]:
        """The results for a block of rows."""
        return [block] if self.rows is None else self.rows(block)


AS_IS = Transform("as it is")
PLUS_ONE = Transform("1 + w", lambda w: [w + np.float32(1)])
# In float64: rounded to float32 once, the bytes are the same on every machine; with float32 exponentials they are not.
NEG_EXP = Transform("-exp(w)", lambda w: [(-np.exp(w.astype(np.float64))).astype(np.float32)])


@dataclass(frozen=True)
class Rows:
    """Rows of one stored tensor: blocks of its first dimension.

    Args:
        name: The tensor's name, relative to the module that declares the parameter.
        size: How many rows the stored tensor has.
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


@dataclass(frozen=True)
class Source:
    """Where bytes come from: rows of stored tensors, one after another, and what is done to them.

    Several initializers may have the same source, each a different output of its transform (codes, scales).

    Attributes:
        rows: The rows, in the order in which they are written.
        inner: The dimensions of every stored tensor after its first.
        transform: What is done to them.
        output: Which of the transform's outputs this is.
    """

    rows: tuple[Rows, ...]
    inner: tuple[int, ...] = ()
    transform: Transform = AS_IS
    output: int = 0

    @property
    def elements(self) -> int:
        """How many elements it yields."""
        nothing = np.zeros((0, math.prod(self.inner)), np.float32)
        width = self.transform.outputs(nothing)[self.output].shape[1]
        return sum(rows.count for rows in self.rows) * width


class Weight(nn.Parameter):
    """An initializer made of stored tensors.

    Args:
        name: The name relative to the declaring module; also that of the stored tensor, unless ``source`` is given.
        shape: The shape in the graph: any with the same number of elements as its source.
        dtype: The element type in the graph, to which the source's values are rounded.
        source: Where its bytes come from; None means the whole tensor of the same name and shape.
        transform: What is done to that tensor.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: ir.DataType,
        source: Source | None = None,
        *,
        transform: Transform = AS_IS,
    ) -> None:
        super().__init__(shape, dtype=dtype, name=name)
        self.local_name = name
        self.dims = tuple(shape)
        self.source = source or Source((Rows(name, shape[0]),), self.dims[1:], transform)
        if self.source.elements != math.prod(shape):
            raise ValueError(f"{name}: {self.source} does not make up {list(shape)}")

    def source_names(self) -> list[str]:
        """The full names of its sources, once the graph is built (and the parameter has its own full name)."""
        scope = str(self.name).removesuffix(self.local_name)
        return [scope + rows.name for rows in self.source.rows]


class Table(nn.Parameter):
    """An initializer that is computed: a table of rows, or a single row.

    Args:
        name: The name relative to the declaring module.
        shape: ``[rows, width]``, or ``[width]``.
        dtype: The element type in the graph.
        rows: Returns rows ``[start, stop)`` in float32, ``[stop - start, width]``.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: ir.DataType,
        rows: Callable[[int, int], Array],
    ) -> None:
        super().__init__(shape, dtype=dtype, name=name)
        self.dims = tuple(shape)
        self.rows = rows


class Shared(nn.Parameter):
    """An initializer whose bytes are in another graph's data file, which is where they are written.

    Args:
        name: Its full name in both graphs: the module that declares it must be the root.
        shape: Its shape.
        dtype: Its element type.
    """

    def __init__(self, name: str, shape: Sequence[int], dtype: ir.DataType) -> None:
        super().__init__(shape, dtype=dtype, name=name)
        self.dims = tuple(shape)
