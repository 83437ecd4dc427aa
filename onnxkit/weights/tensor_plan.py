"""The tensor plan: for each initializer, where its bytes come from; for each stored tensor, what takes it.

A plan is a value. Making it reads no weights and changes neither graph nor checkpoint; an export follows it, and
``inspect`` and ``verify`` read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import BinaryIO

import onnx_ir as ir

from onnxkit.sizes import readable
from onnxkit.weights.checkpoint import INDEX_FILE
from onnxkit.weights.parameters import AS_IS
from onnxkit.weights.safetensors_file import StoredTensor

# Tensors of up to this many bytes go into the model file: shape inference reads small constants there.
INLINE_BYTES = 256


class Disposition(Enum):
    """What becomes of an initializer."""

    COPIED = "copied as stored"
    CONVERTED = "converted"
    COMPUTED = "computed"
    SHARED = "shared with another graph"


@dataclass(frozen=True)
class PlannedTensor:
    """An initializer.

    Attributes:
        name: Its name in the graph.
        shape: Its shape.
        dtype: Its element type.
        disposition: What becomes of it.
        sources: The stored tensors that it is made of, in the order of its rows; none if it is computed or shared.
        transform: What is done to them, for human readers.
        tensor: Provides its bytes when they are written; None if another graph's data file holds them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ir.DataType
    disposition: Disposition
    sources: tuple[StoredTensor, ...] = ()
    transform: str = AS_IS.name
    tensor: ir.TensorProtocol | None = None

    @property
    def fate(self) -> str:
        """What becomes of it, with what is done to it, for human readers."""
        if self.disposition is not Disposition.CONVERTED:
            return self.disposition.value
        done = f"to {self.dtype.numpy().name}" if self.transform == AS_IS.name else self.transform
        return f"{self.disposition.value}: {done}"

    @property
    def byte_count(self) -> int:
        """Its size in bytes, wherever they are."""
        return prod(self.shape) * int(self.dtype.itemsize)


@dataclass(frozen=True)
class TensorPlan:
    """What becomes of every tensor of a graph and of its checkpoint.

    Attributes:
        initializers: The graph's initializers by name, in the graph's order.
        left_out: The stored tensors that no initializer takes, each with the reason.
        astray: The stored tensors that the index is wrong about and that nothing takes, each with what is wrong.
    """

    initializers: Mapping[str, PlannedTensor]
    left_out: Mapping[str, str]
    astray: Mapping[str, str]

    @property
    def takers(self) -> dict[str, str]:
        """The initializer that takes each stored tensor, by the stored tensor's name."""
        return {stored.name: tensor.name for tensor in self.initializers.values() for stored in tensor.sources}

    @property
    def shared(self) -> list[str]:
        """The initializers whose bytes another graph's data file holds."""
        return [t.name for t in self.initializers.values() if t.disposition is Disposition.SHARED]

    def byte_count(self, *dispositions: Disposition) -> int:
        """The total bytes of the initializers with these dispositions."""
        return sum(t.byte_count for t in self.initializers.values() if t.disposition in dispositions)

    @property
    def external_bytes(self) -> int:
        """Bytes that will be written beside the model file."""
        own = (t for t in self.initializers.values() if t.disposition is not Disposition.SHARED)
        return sum(t.byte_count for t in own if t.byte_count > INLINE_BYTES)

    def index_notes(self) -> list[str]:
        """A note if the index is wrong about tensors that nothing takes."""
        if not self.astray:
            return []
        name, wrong = next(iter(self.astray.items()))
        more = f" and {len(self.astray) - 1} more" if len(self.astray) > 1 else ""
        return [f"{INDEX_FILE}: {name}{more}: {wrong}; no graph reads them"]

    def summary(self) -> str:
        """What becomes of the initializers, with counts and bytes, in one line."""
        parts = []
        for disposition in Disposition:
            tensors = [t for t in self.initializers.values() if t.disposition is disposition]
            if tensors:
                size = readable(sum(tensor.byte_count for tensor in tensors))
                parts.append(f"{len(tensors)} {disposition.value} ({size})")
        return ", ".join(parts)

    def hollow(self) -> TensorPlan:
        """The same plan without the bytes: data files become holes, which take no space on disk."""
        return replace(self, initializers={name: _hollow(tensor) for name, tensor in self.initializers.items()})


class _Hole(ir.LazyTensor):
    """A tensor that leaves its place in the data file as it is."""

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        super().__init__(lambda: tensor, tensor.dtype, ir.Shape(list(tensor.shape.numpy())), name=tensor.name)

    def tofile(self, file: BinaryIO) -> None:
        """Write nothing."""


def _hollow(planned: PlannedTensor) -> PlannedTensor:
    if planned.tensor is None or planned.byte_count <= INLINE_BYTES:
        return planned
    return replace(planned, tensor=_Hole(planned.tensor))
