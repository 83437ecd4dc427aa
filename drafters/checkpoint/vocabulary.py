"""A head over a part of the target's vocabulary, and the map from its rows to the target's ids."""

from __future__ import annotations

import numpy as np

from drafters.checkpoint import conventions
from drafters.checkpoint.identity import Identity
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.names import EMBEDDING, HEAD, MAP, MASK, DraftNames, tensor
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.safetensors_file import read_integers


def draft_vocabulary(checkpoint: Checkpoint, found: Identity, vocab: int) -> int | None:
    """The rows of the drafter's own head, after a look at the map to the target's ids, which is small.

    Raises:
        ExportError: Keys, head and maps do not fit together.
    """
    sections, names = found.sections, found.names
    size = conventions.draft_vocabulary(sections, vocab, MAP in names)
    if size is None or size >= vocab:
        if size is not None and HEAD in names:
            raise sections.error("draft_vocab_size", f"{vocab} (vocab_size): rows beyond it would be drafted")
        return size
    if found.family == Family.DFLASH2:
        accepted = f"{vocab} (vocab_size): a DFlash 2 selector scores the whole vocabulary"
        raise sections.error("draft_vocab_size", accepted)
    if HEAD not in names:
        raise not_stored(checkpoint, found, "draft_vocab_size", HEAD)
    _check_map(checkpoint, names, size, vocab)
    return size


def holds_no_row_per_token(found: Identity) -> bool:
    """Whether the drafter has no table of its own with a row per token, so that the target's vocabulary counts."""
    return found.family == Family.DFLASH and not any(name in found.names for name in (EMBEDDING, HEAD, MAP))


def not_stored(checkpoint: Checkpoint, found: Identity, key: str, name: str) -> ExportError:
    """The error for a tensor that a key declares and that is missing."""
    return ExportError(
        "A part that the config declares is not stored.",
        where=f"{found.sections.place(key)} and the tensors of {checkpoint.folder}",
        found=f"no {name}",
        accepted=f"the tensor, or {key} false",
        fix="Complete the download.",
    )


def _check_map(checkpoint: Checkpoint, names: DraftNames, size: int, vocab: int) -> None:
    offsets, mask = tensor(checkpoint, names, MAP), tensor(checkpoint, names, MASK)
    assert offsets is not None
    if offsets.shape != (size,) or offsets.dtype != "I64" or not offsets.here:
        return  # the tensor plan says so; or the values are still on the Hub
    ids = np.arange(size) + read_integers(offsets)
    used = np.unique(ids)
    if len(used) != size or used[0] < 0 or used[-1] >= vocab:
        raise ExportError(
            "The map from the drafter's rows to the target's ids is wrong.",
            where=f"{checkpoint.folder}: {names(MAP)}",
            found=f"ids from {used[0]} to {used[-1]}, {size - len(used)} of them more than once",
            accepted=f"different ids from 0 to {vocab - 1}, each its row plus d2t",
            fix="Get the weights again from where the drafter comes from.",
        )
    if mask is None:
        return
    good = mask.dtype in ("BOOL", "I64", "I32") and mask.shape == (vocab,)
    if not good or not np.array_equal(np.flatnonzero(read_integers(mask)), used):
        raise ExportError(
            "The two maps of the vocabulary disagree.",
            where=f"{checkpoint.folder}: {names(MASK)} and {names(MAP)}",
            found=f"{mask.dtype} {list(mask.shape)}" if not good else "other tokens in the one than in the other",
            accepted=f"true at the {size} ids that d2t leads to, of {vocab}",
            fix="Get the weights again from where the drafter comes from.",
        )
