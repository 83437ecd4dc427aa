"""A row of the drafter's own for the mask token, in ``mask_embedding.pt`` beside the weights.

Trainers whose target has no mask token train one row for it and save it by itself. Programs that serve such a drafter
put it in the place of the mask token's row of the embedding; without it a block is drafted from a row of noise.

============================================ ========================================
what the file holds                          shape
============================================ ========================================
a tensor                                     ``[hidden]`` or ``[1, hidden]``
a dictionary with one tensor, and perhaps    the same
the ``mask_token_id``
============================================ ========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxkit.errors import ExportError
from onnxkit.weights.torch_file import read_torch_file

MASK_FILE = "mask_embedding.pt"


@dataclass(frozen=True, eq=False)
class MaskRow:
    """The row, ``[hidden]`` float32."""

    values: np.ndarray[Any, Any]

    def rows(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """The one row of a table with one row."""
        return self.values[None][start:stop]

    def __str__(self) -> str:
        return f"a row of {len(self.values)} values"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskRow) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.values.tobytes())


def read_mask_row(path: Path | None, hidden_size: int, mask_token_id: int) -> MaskRow | None:
    """The row that the file of a drafter's folder holds; None if there is no such file.

    Raises:
        ExportError: The file cannot be read, or holds something else.
    """
    if path is None:
        return None
    found = read_torch_file(path)
    if isinstance(found, dict):
        token = found.get("mask_token_id", mask_token_id)
        if isinstance(token, np.ndarray) and token.size == 1:
            token = token.item()
        if token != mask_token_id:
            raise _error(path, f"the row of token {token}", f"that of mask_token_id ({mask_token_id})")
        rows = [value for key, value in found.items() if isinstance(value, np.ndarray) and key != "mask_token_id"]
        found = rows[0] if len(rows) == 1 else f"a dictionary with {len(rows)} tensors"
    if not isinstance(found, np.ndarray):
        raise _error(path, found if isinstance(found, str) else type(found).__name__, "one tensor")
    if found.size != hidden_size or found.shape[-1] != hidden_size or found.dtype.kind == "i":
        shape = f"{found.dtype} {list(found.shape)}"
        raise _error(path, shape, f"[{hidden_size}] or [1, {hidden_size}] floating-point numbers (hidden_size)")
    values = found.reshape(hidden_size).astype(np.float32)
    if not np.isfinite(values).all():
        raise _error(path, "infinities or NaN", "finite numbers")
    return MaskRow(values)


def _error(path: Path, found: str, accepted: str) -> ExportError:
    return ExportError(
        "The mask token's row does not fit this drafter.",
        where=path,
        found=found,
        accepted=accepted,
        fix="Get the file again from where the drafter comes from.",
    )
