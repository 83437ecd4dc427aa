"""Initializers that are made while they are written: read, changed and written block by block, never held whole."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir

from onnxkit.errors import ExportError
from onnxkit.weights.safetensors_file import DTYPES, StoredTensor

# Elements in memory at a time. A block is held as read, as float32 and as written: at most 10 bytes per element.
BLOCK_ELEMENTS = 4 << 20

# The largest values of the floats that weights are rounded to.
_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895314e38, ir.DataType.FLOAT: 3.4028235e38}

# For each float type: its bits as a whole number, a mask without the sign, and the value from which on the bits,
# masked, mean infinity or NaN.
_BITS = {
    "BF16": (np.uint16, 0x7FFF, 0x7F80),
    "F16": (np.uint16, 0x7FFF, 0x7C00),
    "F32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
    "F64": (np.uint64, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
}


@dataclass(frozen=True)
class Seen:
    """What a writer has seen of a stored tensor: whether a value was not 0, and whether one was not 0 when written."""

    stored: StoredTensor
    before: bool
    after: bool


Array = np.ndarray[Any, Any]
Writer = Callable[[BinaryIO], Seen | None]
RowMath = Callable[[Array], Array]  # from whole rows in float32, [rows, width], to as many rows


class StreamedTensor(ir.LazyTensor):
    """A tensor whose bytes come from writers, called one after another when its turn to be written comes.

    A plain ``ir.LazyTensor`` holds the whole tensor while it is written; for a large embedding that is gigabytes.

    Args:
        name: The initializer's name.
        dtype: Its element type.
        shape: Its shape.
        writers: Each writes the next part of the bytes, little endian, to a binary file.
    """

    def __init__(self, name: str, dtype: ir.DataType, shape: Sequence[int], writers: Sequence[Writer]) -> None:
        super().__init__(self._whole, dtype, ir.Shape(list(shape)), name=name)
        self._writers = tuple(writers)

    def tofile(self, file: BinaryIO) -> None:
        """Write the tensor's bytes, a block at a time.

        Raises:
            ExportError: A value is not finite or too large for the written type, or all of a tensor's are too small.
        """
        seen: dict[str, list[Seen]] = {}
        for write in self._writers:
            if found := write(file):
                seen.setdefault(found.stored.name, []).append(found)
        for parts in seen.values():
            if any(part.before for part in parts) and not any(part.after for part in parts):
                raise _vanished(parts[0].stored, self.dtype)

    def held(self) -> ir.TensorProtocol:
        """The same tensor in memory: for small tensors, which go into the model file itself."""
        return self._whole()

    def _whole(self) -> ir.TensorProtocol:
        buffer = io.BytesIO()
        self.tofile(buffer)
        array = np.frombuffer(buffer.getvalue(), self.dtype.numpy()).reshape(self.shape.numpy())
        return ir.Tensor(array, dtype=self.dtype, name=self.name)


def byte_range(
    stored: StoredTensor, rows: tuple[int, int], name: str, shape: Sequence[int] | None = None
) -> ir.ExternalTensor:
    """Rows ``[start, stop)`` of a stored tensor as they are, perhaps read in another shape.

    The path is absolute and without a base folder: with one, onnx_ir refuses links, which the Hub's cache is made of.
    """
    start, stop = rows
    row_bytes = stored.length // max(stored.shape[0], 1) if stored.shape else stored.length
    return ir.ExternalTensor(
        stored.path.absolute(),
        stored.offset + start * row_bytes,
        (stop - start) * row_bytes,
        ir.DataType.from_numpy(DTYPES[stored.dtype]),
        shape=ir.Shape(shape if shape is not None else [stop - start, *stored.shape[1:]] if stored.shape else []),
        name=name,
    )


def copied(stored: StoredTensor, rows: tuple[int, int], allow_nonfinite: bool) -> Writer:
    """A writer of rows ``[start, stop)`` as they are. It checks them on the way, unless they may be non-finite."""
    piece = byte_range(stored, rows, stored.name)

    def write(file: BinaryIO) -> None:
        for start, block in _blocks(stored, piece):
            _check_finite(block, stored, start)
            file.write(block.reshape(-1).view(np.uint8).data)

    return piece.tofile if allow_nonfinite or stored.dtype not in _BITS else write


def converted(
    stored: StoredTensor, rows: tuple[int, int], math: RowMath | None, dtype: ir.DataType, allow_nonfinite: bool
) -> Writer:
    """A writer of rows ``[start, stop)``: read, converted to float32, ``math`` applied, rounded to ``dtype``."""
    piece = byte_range(stored, rows, stored.name)

    def write(file: BinaryIO) -> Seen | None:
        before = after = same = False
        for start, raw in _blocks(stored, piece):
            if not allow_nonfinite:
                _check_finite(raw, stored, start)
            with np.errstate(over="ignore", invalid="ignore"):  # reported below, with the tensor's name
                block = raw.astype(np.float32)
                rounded = (block if math is None else math(block)).astype(dtype.numpy(), copy=False)
            same = rounded.shape == raw.shape
            if same:
                _check_range(raw, rounded, dtype, stored)
                before, after = before or bool(raw.any()), after or bool(rounded.any())
            file.write(np.ascontiguousarray(rounded).view(np.uint8).data)
        return Seen(stored, before, after) if same else None

    return write


def _blocks(stored: StoredTensor, piece: ir.ExternalTensor) -> Iterator[tuple[int, Array]]:
    """The values of a piece as they are stored, in blocks of whole rows, ``[rows, width]``.

    Each comes with the index of its first value in the tensor.
    """
    source = DTYPES[stored.dtype]
    shape = [int(size) for size in piece.shape.numpy()] or [1]
    width = prod(shape[1:])
    first = ((piece.offset or 0) - stored.offset) // source.itemsize
    step = max(BLOCK_ELEMENTS // max(width, 1), 1)
    with stored.path.open("rb") as data:
        data.seek(piece.offset or 0)
        for start in range(0, shape[0], step):
            count = min(step, shape[0] - start)
            block = read_exactly(data, count * width * source.itemsize, stored.path).view(source)
            yield first + start * width, block.reshape(count, width)


def read_exactly(file: BinaryIO, count: int, path: Path) -> Array:
    """The next bytes of a file, ``[count]`` uint8.

    Raises:
        OSError: It has fewer, which the system itself does not treat as an error (there is then no ``errno``); or the
            system reports an error, which then names the file.
    """
    data = np.empty(count, np.uint8)
    try:
        found = file.readinto(data.data)  # type: ignore[attr-defined]
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    if found < count:
        raise OSError(f"{path} is shorter than its header says")
    return data


def computed(row: Callable[[int, int], Array], count: int, width: int, dtype: ir.DataType) -> Writer:
    """A writer of a table of ``count`` rows of ``width``: ``row(start, stop)`` returns rows in float32."""
    step = max(BLOCK_ELEMENTS // width, 1)

    def write(file: BinaryIO) -> None:
        for start in range(0, count, step):
            block = np.ascontiguousarray(row(start, min(start + step, count)).astype(dtype.numpy()))
            file.write(block.view(np.uint8).data)

    return write


def _check_finite(block: Array, stored: StoredTensor, start: int) -> None:
    """Check by their bits that all values are finite, which is faster than by their values."""
    kind, mask, limit = _BITS[stored.dtype]
    block = block.reshape(-1)
    bits = block.view(kind) & kind(mask)
    if not len(bits) or bits.max() < limit:
        return
    places = np.flatnonzero(bits >= limit)
    index = [int(i) for i in np.unravel_index(start + int(places[0]), stored.shape)] if stored.shape else []
    raise ExportError(
        "A weight is not finite.",
        where=f"{stored.path}: {stored.name}{index}",
        found=f"{float(block[places[0]]):g}, and {len(places)} such values among {len(block)}",
        accepted="finite numbers",
        fix="Get the weights again, from a run that did not diverge, or take them as they are: allow_nonfinite=true.",
    )


def _check_range(raw: Array, rounded: Array, dtype: ir.DataType, stored: StoredTensor) -> None:
    """Check that finite values stay finite. Values that the type cannot hold are an error, not an infinity."""
    if np.isfinite(rounded).all():
        return
    lost = np.isfinite(raw) & ~np.isfinite(rounded)
    if lost.any():
        raise ExportError(
            f"A weight is too large for {dtype.name.lower()}.",
            where=f"{stored.path}: {stored.name}",
            found=f"a value of {float(np.abs(raw[lost]).max()):g}",
            accepted=f"values up to {_LARGEST[dtype]:g}",
            fix="Export with -p bf16 or -p fp32." if dtype == ir.DataType.FLOAT16 else "Check how it was trained.",
        )


def _vanished(stored: StoredTensor, dtype: ir.DataType) -> ExportError:
    return ExportError(
        f"A weight is too small for {dtype.name.lower()}: all its values would become 0.",
        where=f"{stored.path}: {stored.name}",
        found="values that are not 0, all of them below the smallest that the type holds",
        accepted="a tensor with at least one value that does not become 0",
        fix="Export with -p bf16 or -p fp32." if dtype == ir.DataType.FLOAT16 else "Check how it was trained.",
    )
