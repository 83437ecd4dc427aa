"""A tensor in a file from ``torch.save``, read without torch and without running any code in the pickle.

Such a file is a zip archive: ``*/data.pkl`` describes the object, ``*/data/0`` and so on hold the tensors' bytes
(https://pytorch.org/docs/stable/notes/serialization.html). Of the pickle, only the calls that describe plain tensors
and ordered dictionaries are taken; any other name in it is refused, and nothing is imported.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnxkit.errors import ExportError

Array = np.ndarray[Any, Any]

_LONGEST = 1 << 16  # the most bytes of a pickle; one that describes a few tensors has some hundred

# The classes that name the element type of stored bytes.
_STORAGES: dict[str, Any] = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
}


@dataclass(frozen=True)
class _Storage:
    """Bytes of one type; ``count`` elements under ``key`` in the archive."""

    dtype: Any
    key: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Refused(Exception):
    """Something in the file is not a plain tensor."""


class _Rebuild:
    """Stands for the function that puts a tensor together. Without attributes, a pickle has nothing to change here."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> _Tensor:
        if not isinstance(storage, _Storage):
            raise _Refused("a tensor without a storage")
        return _Tensor(storage, offset, tuple(size), tuple(stride))


class _Unpickler(pickle.Unpickler):
    """Describes tensors; knows no other classes or functions."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for."""
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): _Rebuild(),
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in _STORAGES:
            return name
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        """The storage that a reference in the pickle names."""
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or pid[1] not in _STORAGES:
            raise _Refused("a storage of an unknown form")
        _, name, key, _, count = pid
        if not isinstance(key, str) or not isinstance(count, int):
            raise _Refused("a storage of an unknown form")
        return _Storage(_STORAGES[name], key, count)


def read_torch_file(path: Path, most: int = 1 << 20) -> Any:
    """The object in a file: an array, or a dictionary of arrays and plain values.

    Args:
        path: The file.
        most: The largest number of elements that a tensor may have.

    Raises:
        ExportError: The file is not such an archive, is damaged, or holds something other than plain tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = next((n.removesuffix("data.pkl") for n in archive.namelist() if n.endswith("data.pkl")), None)
            if root is None:
                raise _Refused("no data.pkl")
            if archive.getinfo(f"{root}data.pkl").file_size > _LONGEST:
                raise _Refused("a description longer than any of a tensor")
            with archive.open(f"{root}data.pkl") as file:
                found = _Unpickler(file).load()
            return _arrays(archive, root, found, most)
    except OSError as error:
        raise _error(path, error.strerror or str(error)) from error
    except Exception as error:  # a damaged pickle raises whatever its last instruction does
        raise _error(path, f"{type(error).__name__}: {error}".removeprefix("_Refused: ")) from error


def _arrays(archive: zipfile.ZipFile, root: str, found: Any, most: int) -> Any:
    """The same object with its tensors as arrays."""
    if isinstance(found, dict):
        return {key: _arrays(archive, root, value, most) for key, value in found.items()}
    if not isinstance(found, _Tensor):
        return found
    storage, size = found.storage, int(np.prod(found.shape, dtype=np.int64))
    name = f"{root}data/{storage.key}"
    steps = tuple(int(np.prod(found.shape[axis + 1 :], dtype=np.int64)) for axis in range(len(found.shape)))
    if any(n > 1 and step != own for n, step, own in zip(found.shape, steps, found.stride, strict=True)):
        raise _Refused("a tensor whose rows do not lie one after another")
    if not 0 <= size <= most or found.offset < 0 or found.offset + size > storage.count:
        raise _Refused(f"a tensor of shape {list(found.shape)} in a storage of {storage.count}")
    if archive.getinfo(name).file_size != storage.count * storage.dtype.itemsize or storage.count > 2 * most:
        raise _Refused(f"a storage of {archive.getinfo(name).file_size} bytes for {storage.count} elements")
    values = np.frombuffer(archive.read(name), storage.dtype)
    return values[found.offset : found.offset + size].reshape(found.shape)


def _error(path: Path, found: str) -> ExportError:
    return ExportError(
        "A file from torch.save cannot be read.",
        where=path,
        found=found,
        accepted="a zip archive, as torch.save writes it since version 1.6, with a plain tensor",
        fix="Get the file again, or save the tensor by itself: torch.save(tensor.detach().cpu().contiguous(), file).",
    )
