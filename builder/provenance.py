"""Where a checkpoint comes from: the repository of the Hub, its commit, and the hashes that the Hub has for its files.

All of it is read from the layout of the Hub's cache, so that a snapshot tells the same however it was named, with or
without a network. No weight is hashed here: a file of the cache has the hash that the Hub gave it as its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.hub import DRAFTER_FILES, TARGET_FILES
from onnxkit.weights.checkpoint import Checkpoint

_PREFIX = "models--"
_KINDS = {40: "git-sha1", 64: "sha256"}  # of small files, and of those in the Hub's store for large ones


@dataclass(frozen=True)
class Provenance:
    """Where a checkpoint comes from.

    Attributes:
        repository: The repository on the Hub.
        commit: Its commit.
        files: The Hub's hash of each file that is read, such as ``sha256:...``, by the file's name. On a file system
            without links the cache holds copies, which have no hash.
    """

    repository: str
    commit: str
    files: dict[str, str]


def sources(checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """What ``draftsmith.json`` records of a target's checkpoint and a drafter's: those that come from the Hub."""
    found = {}
    for role, checkpoint, files in zip(("target", "drafter"), checkpoints, (TARGET_FILES, DRAFTER_FILES), strict=False):
        weights = {tensor.path.name for tensor in checkpoint.tensors.values()}
        if known := provenance(checkpoint.folder, {*files, *weights}):
            found[role] = asdict(known)
    return found


def recorded_name(folder: Path) -> str:
    """What to record of a folder that an option names: a repository at its commit, or the path."""
    known = provenance(folder, ())
    return f"{known.repository}@{known.commit}" if known else str(folder)


def provenance(folder: Path, names: Iterable[str]) -> Provenance | None:
    """Where a folder comes from, with the hashes of some of its files; None if it is no snapshot of the cache."""
    real = Path(os.path.realpath(folder))
    home = real.parent.parent
    if real.parent.name != "snapshots" or not home.name.startswith(_PREFIX):
        return None
    repository = home.name.removeprefix(_PREFIX).replace("--", "/")
    present = sorted(name for name in names if (real / name).is_file())
    hashes = {name: _hash(real / name) for name in present}
    return Provenance(repository, real.name, {name: known for name, known in hashes.items() if known})


def _hash(path: Path) -> str | None:
    """The hash that a link into the cache's blobs names."""
    return _labelled(path.readlink().name) if path.is_symlink() else None


def _labelled(digest: str) -> str | None:
    kind = _KINDS.get(len(digest))
    return f"{kind}:{digest}" if kind and re.fullmatch(r"[0-9a-f]+", digest) else None
