"""The headers of safetensors files: where each tensor's bytes lie. No tensor is read here."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from onnxkit.errors import ExportError, system_error
from onnxkit.foreign_file import BEGINNING, foreign
from onnxkit.json_object import parse_json
from onnxkit.text import clipped, escaped

# Limits on a header: a mixture of a thousand experts has a header of 5 MB with 50 000 tensors.
MOST_HEADER_BYTES, MOST_TENSORS, LONGEST_NAME, MOST_DIMENSIONS = 25_000_000, 200_000, 500, 8

# safetensors' names for element types; any other type is shown by its own name and refused when it is read.
# Whole numbers are taken as they are, and only where the graph expects whole numbers.
DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: its name, element type (safetensors' name), shape, and place in a file (bytes).

    ``here`` tells whether its bytes are present: for a checkpoint on the Hub, the headers are read first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    length: int
    here: bool = True


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, by name.

    The safetensors library checks the header: offsets in order and without gaps, lengths that agree with shapes and
    types, a file that ends where the last tensor does. It does not report the offsets, so they are read again here.

    Raises:
        ExportError: The file cannot be read, is cut short, or its header is wrong.
    """
    try:
        with path.open("rb") as file:
            if error := foreign(path, file.read(BEGINNING)):
                raise error
            file.seek(0)
            size, text = _header_text(file.read(8), file, path)
        with safe_open(path, framework="numpy"):
            pass
        entries: dict[str, Any] = parse_json(text.decode(), once=True)
    except SafetensorError as error:
        raise ExportError(
            "A safetensors file is damaged or cut short.",
            where=path,
            found=f"{path.stat().st_size} bytes; {error}",
            accepted="a complete file whose header agrees with its size",
            fix="Copy or download the file again.",
        ) from error
    except (ValueError, RecursionError) as error:  # for instance, a name that occurs twice; the library takes the last
        raise ExportError(
            "A safetensors header is invalid.",
            where=path,
            found=clipped(escaped(str(error))),
            accepted="each name once, in JSON",
            fix="Copy or download the file again.",
        ) from error
    except OSError as error:
        raise system_error(error, path, "a file that you may read") from error
    entries.pop("__metadata__", None)
    _check_names(path, entries)
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


def _header_text(first: bytes, file: BinaryIO, path: Path) -> tuple[int, bytes]:
    """The header's size and its bytes, after checking how much memory they would take."""
    size = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    text = file.read(min(size, MOST_HEADER_BYTES))
    if len(text) < size <= MOST_HEADER_BYTES:
        return size, text  # cut short, which the library reports better
    if size > MOST_HEADER_BYTES and len(text) == MOST_HEADER_BYTES:
        raise _too_large(path, f"a header of {size} bytes", f"a header of up to {MOST_HEADER_BYTES} bytes")
    if (count := text.count(b'"data_offsets"')) > MOST_TENSORS:
        raise _too_large(path, f"{count} tensors", f"up to {MOST_TENSORS} tensors")
    return size, text


def _check_names(path: Path, entries: dict[str, Any]) -> None:
    if len(entries) > MOST_TENSORS:
        raise _too_large(path, f"{len(entries)} tensors", f"up to {MOST_TENSORS} tensors")
    for name, entry in entries.items():
        if len(name) > LONGEST_NAME or len(entry["shape"]) > MOST_DIMENSIONS:
            found = f"{name[:60]!r}: a name of {len(name)} characters, {len(entry['shape'])} dimensions"
            accepted = f"names of up to {LONGEST_NAME} characters, up to {MOST_DIMENSIONS} dimensions"
            raise _too_large(path, found, accepted)


def _too_large(path: Path, found: str, accepted: str) -> ExportError:
    return ExportError(
        "A safetensors file exceeds the limits of any real checkpoint.",
        where=path,
        found=found,
        accepted=accepted,
        fix="Get the file again from a source that you trust.",
    )


_COMPARED = 64 << 20  # bytes of each of two tensors that are compared at a time


def same_bytes(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether two tensors are the same in type, shape and every byte.

    This reads them; the bytes of tensors that are not here are taken to be the same.
    """
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if not (a.here and b.here):
        return True
    with a.path.open("rb") as first, b.path.open("rb") as second:
        first.seek(a.offset)
        second.seek(b.offset)
        for start in range(0, a.length, _COMPARED):
            size = min(_COMPARED, a.length - start)
            if first.read(size) != second.read(size):
                return False
    return True


def read_integers(tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """The values of a tensor of whole numbers or booleans, ``[elements]``."""
    dtype = {"I64": "<i8", "I32": "<i4", "BOOL": "?", "U8": "u1"}[tensor.dtype]
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        return np.frombuffer(file.read(tensor.length), dtype)


def read_floats(tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """The values of a small tensor of floating-point numbers, as float32."""
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        return np.frombuffer(file.read(tensor.length), DTYPES[tensor.dtype]).astype(np.float32)
