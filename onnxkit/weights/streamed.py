"""Initializers that are made while they are written: read, changed and written block by block, never held whole."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir

from onnxkit.errors import ExportError
from onnxkit.weights.safetensors_file import DTYPES, StoredTensor

# Elements in memory at a time. A block is held as read, as float32 and as written: 10 bytes an element at the most.
BLOCK_ELEMENTS = 4 << 20

# The largest values of the 16-bit floats that weights are rounded to.
_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895314e38}

Writer = Callable[[BinaryIO], None]
Math = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


class StreamedTensor(ir.LazyTensor):
    """A tensor whose bytes come from writers, called one after another when its turn to be written has come.

    A plain ``ir.LazyTensor`` holds the whole tensor while it is written; of a large embedding that is gigabytes.

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
        """Write the tensor's bytes, a block at a time."""
        for write in self._writers:
            write(file)

    def _whole(self) -> ir.TensorProtocol:
        """The whole tensor: for small ones, which go into the model file itself."""
        buffer = io.BytesIO()
        self.tofile(buffer)
        array = np.frombuffer(buffer.getvalue(), self.dtype.numpy()).reshape(self.shape.numpy())
        return ir.Tensor(array, dtype=self.dtype, name=self.name)


def byte_range(stored: StoredTensor, rows: tuple[int, int], name: str) -> ir.ExternalTensor:
    """Rows ``[start, stop)`` of a stored tensor as they are. onnx_ir copies them in the kernel where it can.

    The path is absolute and without a base folder: with one, onnx_ir refuses links, which the Hub's cache is made of.
    """
    start, stop = rows
    row_bytes = stored.length // max(stored.shape[0], 1) if stored.shape else stored.length
    return ir.ExternalTensor(
        stored.path.absolute(),
        stored.offset + start * row_bytes,
        (stop - start) * row_bytes,
        DTYPES[stored.dtype],
        shape=ir.Shape([stop - start, *stored.shape[1:]] if stored.shape else []),
        name=name,
    )


def converted(stored: StoredTensor, rows: tuple[int, int], math: Math | None, dtype: ir.DataType) -> Writer:
    """A writer of rows ``[start, stop)``: read, brought to float32, ``math`` applied, rounded to ``dtype``."""
    piece = byte_range(stored, rows, stored.name)
    source = np.dtype(DTYPES[stored.dtype].numpy())
    elements = int(np.prod(piece.shape.numpy(), dtype=np.int64))

    def write(file: BinaryIO) -> None:
        with stored.path.open("rb") as data:
            data.seek(piece.offset or 0)
            for start in range(0, elements, BLOCK_ELEMENTS):
                count = min(BLOCK_ELEMENTS, elements - start)
                block = read_exactly(data, count * source.itemsize, stored.path).view(source).astype(np.float32)
                file.write(_rounded(block if math is None else math(block), dtype, stored).data)

    return write


def read_exactly(file: BinaryIO, count: int, path: Path) -> np.ndarray[Any, Any]:
    """The next bytes of a file, ``[count]`` uint8.

    Raises:
        OSError: It has fewer, which the system itself does not call an error (there is no ``errno`` then); or the
            system reports one, which then names the file.
    """
    data = np.empty(count, np.uint8)
    try:
        found = file.readinto(data.data)  # type: ignore[attr-defined]
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    if found < count:
        raise OSError(f"{path} is shorter than its header says")
    return data


def computed(row: Callable[[int, int], np.ndarray[Any, Any]], count: int, width: int, dtype: ir.DataType) -> Writer:
    """A writer of a table of ``count`` rows of ``width``: ``row(start, stop)`` gives rows in float32."""
    step = max(BLOCK_ELEMENTS // width, 1)

    def write(file: BinaryIO) -> None:
        for start in range(0, count, step):
            block = np.ascontiguousarray(row(start, min(start + step, count)).astype(dtype.numpy()))
            file.write(block.view(np.uint8).data)

    return write


def _rounded(block: np.ndarray[Any, Any], dtype: ir.DataType, stored: StoredTensor) -> np.ndarray[Any, Any]:
    """A block in its written type, as bytes. Values that the type cannot hold are an error, not an infinity."""
    with np.errstate(over="ignore"):  # reported below, with the tensor's name
        rounded = block.astype(dtype.numpy(), copy=False)
    if dtype != ir.DataType.FLOAT and not np.isfinite(rounded).all() and np.isfinite(block).all():
        raise ExportError(
            f"A weight is too large for {dtype.name.lower()}.",
            where=f"{stored.path}: {stored.name}",
            found=f"a value of {float(np.abs(block).max()):g}",
            accepted=f"values up to {_LARGEST[dtype]:g}",
            fix="Export with -p bf16 or -p fp32.",
        )
    return np.ascontiguousarray(rounded).view(np.uint8)
