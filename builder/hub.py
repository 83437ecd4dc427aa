"""Checkpoints from the Hugging Face Hub: only the files that an export reads, in the Hub's own cache, never code."""

from __future__ import annotations

import glob
import logging
import shutil
import string
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.hub_errors import Asked, explained, no_room
from builder.hub_name import HubName, hub_name
from builder.tokenizer import FILES, GENERATION_CONFIG, TOKENIZER_CONFIG
from drafters.checkpoint.mask_row import MASK_FILE
from onnxkit.errors import ExportError, listed
from onnxkit.json_object import JsonObject, load_json
from onnxkit.progress import progress_bar
from onnxkit.sizes import readable
from onnxkit.weights.checkpoint import INDEX_FILE, SINGLE_FILE

_log = logging.getLogger(__name__)

_CONFIG = "config.json"

# What is read beside the weights of a target and of a drafter.
TARGET_FILES = (_CONFIG, INDEX_FILE, GENERATION_CONFIG, TOKENIZER_CONFIG, *FILES)
DRAFTER_FILES = (_CONFIG, INDEX_FILE, MASK_FILE)

# Of what names of weights may be made: a name is shown while it is loaded, and becomes a file.
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")

# Files that look like weights, shown where those that an export reads are not there.
_LIKE_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit, as far as it is in the cache.

    Attributes:
        asked: What was asked for, and by which option.
        cache_dir: The cache's folder; None for that of ``huggingface_hub``.
        files: The names of what is read beside the weights.
        folder: The snapshot's folder, which has the commit's name. Its files are links into the cache.
        sizes: Bytes of the repository's files by name, as the Hub lists them; empty where it could not be asked.
        missing: The weights that are not in the cache.
    """

    asked: Asked
    cache_dir: Path | None
    files: tuple[str, ...]
    folder: Path
    sizes: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes still to be downloaded."""
        return sum(self.sizes.get(name, 0) for name in self.missing)


def fetch(
    name: str | HubName, cache_dir: Path | None = None, files: tuple[str, ...] = TARGET_FILES, option: str = "-m"
) -> Path:
    """Download a checkpoint into the cache; files already there are not downloaded again.

    Where the Hub cannot be reached, or ``HF_HUB_OFFLINE`` is set, the cached snapshot is taken if it is complete.

    Args:
        name: The repository, such as ``Qwen/Qwen3.5-4B``, with ``@revision`` where it is not the main branch.
        cache_dir: The cache's folder; None for that of ``huggingface_hub``.
        files: What is read beside the weights.
        option: The option that names the repository, for messages.

    Returns:
        The snapshot's folder, whose files are links into the cache.

    Raises:
        ExportError: The repository does not exist, may not be read, is not a checkpoint, or cannot be downloaded.
    """
    return complete(look(name, cache_dir, files, option))


def look(
    name: str | HubName, cache_dir: Path | None = None, files: tuple[str, ...] = TARGET_FILES, option: str = "-m"
) -> Snapshot:
    """Download a checkpoint's files other than weights, and find out which weights it has. As :func:`fetch`."""
    asked = Asked(name if isinstance(name, HubName) else hub_name(name, option), option)
    folder = _download(asked, cache_dir, files)
    _log.info("%s: commit %s, %s", asked.where, folder.name, folder)
    found = Snapshot(asked, cache_dir, files, folder, _listed_sizes(asked.name, folder.name, cache_dir))
    _check_present(found, [_CONFIG])
    weights = _weight_files(folder)
    missing = _missing(folder, weights)
    if found.sizes and (absent := [name for name in missing if name not in found.sizes]):
        raise _absent(found, absent)
    return Snapshot(asked, cache_dir, files, folder, found.sizes, tuple(missing))


def complete(snapshot: Snapshot) -> Path:
    """Get the weights that a snapshot lacks; gives its folder, or that of a newer commit where there is one meanwhile.

    Raises:
        ExportError: They cannot be loaded.
    """
    asked, missing = snapshot.asked, snapshot.missing
    if missing:
        sizes = ", ".join(f"{name} ({readable(snapshot.sizes[name])})" for name in missing if name in snapshot.sizes)
        _log.info("%s: fetching %s", asked.where, sizes or ", ".join(missing))
        # Not by the commit: without a network, huggingface_hub would then try for half a minute, cache or no cache.
        with progress_bar(snapshot.size or None, "Downloading weights") as progress:
            folder = _download(asked, snapshot.cache_dir, missing, progress)
        if folder != snapshot.folder:
            return fetch(asked.name, snapshot.cache_dir, snapshot.files, asked.option)  # a new release in between
        _check_present(snapshot, missing)
    return snapshot.folder


def check_room(snapshots: Sequence[Snapshot]) -> None:
    """Check that the cache has room for what is still to be downloaded.

    Raises:
        ExportError: There is not enough room.
    """
    for snapshot in snapshots:
        blobs = snapshot.folder.parent.parent / "blobs"
        begun = sum(path.stat().st_size for path in blobs.glob("*.incomplete"))
        free = shutil.disk_usage(snapshot.folder).free + begun
        needed = sum(other.size for other in snapshots)
        if free < needed:
            found = f"{readable(free)} free in {snapshot.folder.parent.parent.parent}"
            raise no_room(snapshot.asked.where, found, f"{readable(needed)}, what is still to be downloaded")


def _listed_sizes(name: HubName, commit: str, cache_dir: Path | None) -> dict[str, int]:
    """The repository's files, from the listing that the library has fetched and keeps in the cache."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        files = get_cached_repo_tree(name.repository, revision=commit, cache_dir=cache_dir)
    except (CachedRepoTreeNotFoundError, OSError):  # a cache that was filled by an older version, or a full disk
        return {}
    return {file.path: file.size for file in files}


def _weight_files(folder: Path) -> list[str]:
    """The files that the index names, or the single file where there is no index.

    The index is a stranger's: a name in it becomes a request, so nothing but weights beside it may be asked for.
    """
    if not (folder / INDEX_FILE).is_file():
        return [SINGLE_FILE]
    names = JsonObject(load_json(folder / INDEX_FILE), INDEX_FILE).section("weight_map").data.values()
    for name in names:
        if not isinstance(name, str) or not name.endswith(".safetensors") or not set(name) <= _PLAIN:
            raise ExportError(
                "The index names a file that is not fetched.",
                where=f"{folder / INDEX_FILE}: weight_map",
                found=repr(name),
                accepted="names of safetensors files beside the index: letters, digits, dots, dashes, underscores",
                fix="Name a repository that you trust, with its weights as safetensors.",
            )
    return sorted(set(names))


def _missing(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def _check_present(snapshot: Snapshot, names: Iterable[str]) -> None:
    """Refuse a snapshot without files that it must have: none such in the repository, or a cached part of it."""
    if missing := _missing(snapshot.folder, names):
        raise _absent(snapshot, missing)


def _absent(snapshot: Snapshot, missing: Sequence[str]) -> ExportError:
    like = [name for name in snapshot.sizes if name.endswith(_LIKE_WEIGHTS)]
    return ExportError(
        "The repository, or the part of it that is cached, lacks files that an export needs.",
        where=f"{snapshot.asked.where}, snapshot {snapshot.folder}",
        found=f"no file {listed(missing)}" + (f"\nbut {listed(like)}" if like else ""),
        accepted=f"{_CONFIG}, and {SINGLE_FILE} or every file that {INDEX_FILE} names",
        fix="If you are offline, connect and unset HF_HUB_OFFLINE, to finish the download. "
        "If you are not, name the repository that holds the weights as safetensors.",
    )


def _download(
    asked: Asked, cache_dir: Path | None, names: Sequence[str], progress: Callable[[int], object] = lambda count: None
) -> Path:
    """The snapshot's folder with the files of these very names, as far as the repository has them."""
    # Imported here: only who names a repository need wait for it. HTTPError is that of the HTTP library, which differs
    # between versions.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]

    name, patterns = asked.name, [glob.escape(name) for name in names]
    try:
        with _silent():
            folder = snapshot_download(
                name.repository,
                revision=name.revision,
                cache_dir=cache_dir,
                allow_patterns=patterns,
                tqdm_class=_counted(progress),
            )
        return Path(folder)
    except (
        HFValidationError,
        HTTPError,
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError: the Xet client's, of any kind
        raise explained(error, asked, names) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Without the library's warnings, which are advice to other programs. Errors are raised anyway."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _counted(progress: Callable[[int], object]) -> Any:
    """A class for the library's progress bars that shows nothing and counts. It makes several over the same bytes
    (received, written); the one that is furthest ahead counts."""
    from tqdm import tqdm

    lock, furthest = threading.Lock(), 0

    class Counted(tqdm):  # type: ignore[misc]
        """A bar that is not shown."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.counts = options.get("unit") == "B"
            super().__init__(*arguments, **options | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            """Count."""
            nonlocal furthest
            if not self.counts:
                return
            with lock:
                self.n += int(n or 0)
                if self.n > furthest:
                    progress(self.n - furthest)
                    furthest = self.n

    return Counted
