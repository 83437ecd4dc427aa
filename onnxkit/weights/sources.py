"""The files that a checkpoint is read from: all inside it, and the same at the end as at the start."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from onnxkit.errors import ExportError, listed

# What huggingface_hub puts into the folder of blobs that all repositories in its cache share.
_SHARED_MARK = ".huggingface-shared-blobs"


class Sources:
    """The files of a folder, found one by one.

    A checkpoint is a stranger's, and its files are copied to where others read them: a link in it must not lead to one
    of the user's files. The Hub's cache is made of links; its blob stores are the only place they may lead to.

    Args:
        folder: The folder. It may itself be a link.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._real = Path(os.path.realpath(folder))
        self._roots = (self._real, *_blob_stores(self._real))
        self._found: dict[Path, _Identity] = {}

    def find(self, name: str) -> Path | None:
        """The path of a file, by its name relative to the folder; None if there is no such file.

        Raises:
            ExportError: It leads out of the checkpoint.
            OSError: The system cannot tell, for instance because the name is too long.
        """
        path = self.folder / name
        if not path.is_file():
            return None
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(root) for root in self._roots):
            raise ExportError(
                "A file of the checkpoint is a link that leads out of it.",
                where=path,
                found=f"a link to {real}",
                accepted="files of the folder, or links into the blobs of the Hub's cache",
                fix="If you trust the checkpoint, copy the file in place of the link (cp -L does so).",
            )
        if path not in self._found:
            self._found[path] = _Identity.of(path)
        return path

    def must(self, name: str) -> Path:
        """The path of a file that was found earlier.

        Raises:
            FileNotFoundError: It has since gone.
        """
        if (path := self.find(name)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder / name))
        return path

    def check_unchanged(self) -> None:
        """Check that every file that was found is still what it was then.

        Raises:
            ExportError: One was replaced, changed in place or removed.
        """
        changed = []
        for path, before in self._found.items():
            try:
                after = _Identity.of(path)
            except OSError as error:
                changed.append(f"{path.name}: {error.strerror}")
                continue
            if difference := before.difference(after):
                changed.append(f"{path.name}: {difference}")
        if changed:
            raise ExportError(
                "Files of the checkpoint changed while they were being read.",
                where=self.folder,
                found=listed(changed),
                accepted="files that stay as they are until the command has ended",
                fix="Wait until the checkpoint is written, then run the command again.",
            )


@dataclass(frozen=True)
class _Identity:
    """Which file it is and when it was last written to.

    Attributes:
        file: The file's device and inode.
        size: Its size in bytes.
        written: When its content was last changed, which its owner can set; nanoseconds.
        touched: When content, owner, permissions or links were last changed, which nobody can set; nanoseconds.
        links: How many names (hard links) it has.
    """

    file: tuple[int, int]
    size: int
    written: int
    touched: int
    links: int

    @classmethod
    def of(cls, path: Path) -> _Identity:
        """The identity of the file that a path leads to."""
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return cls((found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink)

    def difference(self, after: _Identity) -> str | None:
        """What has changed, in words; None if nothing has."""
        if self.file != after.file:
            return "another file has taken its place"
        if self.size != after.size:
            return f"{after.size} bytes, {self.size} before"
        if self.written != after.written:
            return "written to"
        # If a file has other names, this time also changes when one of them is added or removed elsewhere.
        if self.touched != after.touched and self.links == after.links == 1:
            return "written to, and its time set back"
        return None


def _blob_stores(real: Path) -> list[Path]:
    """Where links of a snapshot in the Hub's cache lead: the repository's blobs, and those shared by repositories.

    Neither may itself be a link: an archive can be laid out as a cache whose blobs are somebody's home folder.
    """
    for parent in (real, *real.parents):
        repository = parent.parent.parent
        if parent.parent.name == "snapshots" and repository.name.startswith(("models--", "datasets--", "spaces--")):
            shared = repository.parent / "blobs"
            stores = [repository / "blobs", *([shared] if (shared / _SHARED_MARK).is_file() else [])]
            return [store for store in stores if store.is_dir() and not store.is_symlink()]
    return []
