"""The headers of safetensors files: where each tensor's bytes lie. No tensor is read here."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from safetensors import SafetensorError, safe_open

from onnxkit.errors import ExportError

# safetensors' names for element types; what is not here is shown by its own name and refused where it is claimed.
# Whole numbers are taken as they are, and only where the graph wants whole numbers.
DTYPES = {
    "I64": ir.DataType.INT64,
    "F64": ir.DataType.DOUBLE,
    "F32": ir.DataType.FLOAT,
    "F16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: its name, element type (safetensors' name), shape, and place in a file (bytes)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    length: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, by name.

    The safetensors library checks the header: offsets in order and without gaps, lengths that agree with shapes and
    types, a file that ends where the last tensor does. It does not tell the offsets, so they are read once more here.

    Raises:
        ExportError: The file cannot be read, is cut short, or its header is wrong.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            entries: dict[str, Any] = json.loads(file.read(size), object_pairs_hook=_unique)
    except SafetensorError as error:
        raise ExportError(
            "A safetensors file is damaged or cut short.",
            where=path,
            found=f"{path.stat().st_size} bytes; {error}",
            accepted="a complete file whose header agrees with its size",
            fix="Copy or download the file again.",
        ) from error
    except _DuplicateKey as error:
        raise ExportError(
            "A safetensors header names a tensor twice.",
            where=path,
            found=error,
            accepted="each name once",
            fix="Copy or download the file again.",
        ) from error
    except OSError as error:
        raise ExportError(
            "A safetensors file cannot be read.",
            where=path,
            found=error.strerror or error,
            accepted="a file that you may read",
            fix="Check its permissions.",
        ) from error
    entries.pop("__metadata__", None)
    start = 8 + size
    return {
        name: StoredTensor(
            name,
            entry["dtype"],
            tuple(entry["shape"]),
            path,
            start + entry["data_offsets"][0],
            entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in entries.items()
    }


class _DuplicateKey(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in names if names.count(name) > 1))
    return result


_COMPARED = 64 << 20  # bytes of two tensors that are compared at a time


def same_bytes(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether two tensors are the same in type, shape and every byte. This reads them."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with a.path.open("rb") as first, b.path.open("rb") as second:
        first.seek(a.offset)
        second.seek(b.offset)
        for start in range(0, a.length, _COMPARED):
            size = min(_COMPARED, a.length - start)
            if first.read(size) != second.read(size):
                return False
    return True


def read_integers(tensor: StoredTensor) -> list[int]:
    """The values of a small tensor of whole numbers or truth values."""
    dtype = {"I64": "<i8", "I32": "<i4", "BOOL": "?", "U8": "u1"}[tensor.dtype]
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        return [int(value) for value in np.frombuffer(file.read(tensor.length), dtype)]


def read_floats(tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """The values of a small tensor of floating-point numbers, as float32."""
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        return np.frombuffer(file.read(tensor.length), DTYPES[tensor.dtype].numpy()).astype(np.float32)
