"""The atomic output folder: an export replaces what is there as a whole or not at all.

A run that is killed, at whatever moment, leaves a complete export or one without ``genai_config.json``, which the
runtime does not load; the next run repairs it. The work folder stands

- beside the output, as ``.{name}.draftsmith``, where the whole folder can be exchanged;
- inside it, as ``.draftsmith``, where it cannot: a mount point, a parent that is not writable. Files move one by one.

The lock is a ``flock`` on the work folder itself: the kernel releases it with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from onnxkit.errors import ExportError, listed, system_error
from onnxkit.systems import on_linux

MANIFEST = "draftsmith.json"  # every export of this tool holds it
LAST = "genai_config.json"  # the file without which the runtime does not see a model

_INSIDE = ".draftsmith"
_SLACK = 16 * 2**20
_MOUNTS = Path("/proc/self/mountinfo")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

_CHOOSE = "Choose another output folder."
_ROOM = "Free some space, or choose an output folder on another file system."
_FIXES = {  # what to do about the errors of the system, where an output folder is to blame
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Change the permissions, or export elsewhere."),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.ENOTDIR, errno.ELOOP), "Move the file or link away, or choose another output folder."),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.EXDEV, errno.EBUSY), _CHOOSE),
    **dict.fromkeys((errno.EBADF, errno.ENOLCK, errno.ENOTSUP), "Export to a local folder: NFS cannot lock one."),
}

# What file systems without a way to write a folder to the disk say; some mounts over a network have none.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)


class OutputFolder:
    """The output folder of one export, replaced as a whole or not at all.

    ``with OutputFolder(path, inputs) as staging:`` gives an empty folder to build in; ``commit()`` at the end of the
    block puts it in place. A block that ends without it leaves the output exactly as it was.

    ``path`` may be relative, a link to a folder, or not exist yet; ``inputs`` are the folders and files that the export
    reads. The constructor only checks: it raises ``ExportError`` where the folder cannot be the output.
    """

    def __init__(self, path: Path, inputs: Sequence[Path]) -> None:
        # A link stays, what it leads to is replaced; and a later change of the current folder does not matter.
        self._output = Path(os.path.realpath(path))
        with mendable(self._output):
            for source in inputs:
                _check_input(self._output, source)
            self._inside = _is_inside(self._output)
            beside = self._output.parent / f".{self._output.name}.draftsmith"
            self._work = self._output / _INSIDE if self._inside else beside
            self._new, self._old, self._placing = (self._work / name for name in ("new", "old", "placing"))
            self._lock: int | None = None
            self.notes: list[str] = []  # what the user should know of how it was put in place
            self._made: list[Path] = []  # parents of the output that this run made, the outermost first
            # Of a commit that was killed half-way the repair in __enter__ must come first; it is checked there.
            if not (self._inside and (self._old.is_dir() or self._placing.is_dir())):
                self._check_content()

    def check_room(self, needed: int) -> None:
        """Raises ``ExportError`` where the file system of the work folder has no room for ``needed`` bytes."""
        place = next(folder for folder in self._work.parents if folder.exists())
        free = shutil.disk_usage(place).free
        if self._lock is None:  # then what a killed run left goes before anything is written
            with contextlib.suppress(OSError):  # another run is at work there: the lock will tell
                free += sum(path.lstat().st_blocks * 512 for path in self._new.rglob("*"))
        if free < needed + _SLACK:
            raise ExportError(
                "There is not enough room for the export.",
                where=place,
                found=f"{free / 2**30:.2f} GiB free",
                accepted=f"{(needed + _SLACK) / 2**30:.2f} GiB free",
                fix=_ROOM,
            )

    def __enter__(self) -> Path:
        """Takes the lock, repairs what a killed run left, and returns an empty folder to build the export in."""
        try:
            with mendable(self._output):
                self._make_parents()
                self._lock = _locked(self._work, self._output)
                self._settle()
                for leftover in list(self._work.iterdir()):
                    _remove(leftover)
                self._check_content()
                self._new.mkdir()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self._new

    def commit(self) -> None:
        """Puts the staged export in place of what the output folder holds."""
        if self._lock is None or not any(self._new.iterdir()):
            raise RuntimeError("commit() wants a staged export, and a `with` block around it")
        with mendable(self._output):
            self._check_content()  # again: an export takes long, and somebody may have put notes there meanwhile
            for path in (*self._new.rglob("*"), self._new):
                if not path.is_symlink():
                    self._sync(path)  # a power cut after the rename must not leave empty files
            (self._place_inside if self._inside else self._place_beside)()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Removes the work folder and releases the lock, whatever happened."""
        try:
            with mendable(self._output):
                if self._lock is not None:
                    self._settle()
                    _remove(self._work)
        except (OSError, ExportError):
            if error is None:  # otherwise the first failure is the one to show; the next run cleans up
                raise
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # closing is not enough: a forked child may have the descriptor
            os.close(self._lock)
            self._lock = None
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # not empty: the export is in it, or somebody uses it
                folder.rmdir()

    def _make_parents(self) -> None:
        for folder in reversed([folder for folder in self._work.parents if not folder.exists()]):
            with contextlib.suppress(FileExistsError):  # another run was faster
                folder.mkdir()
                self._made.append(folder)

    def _check_content(self) -> None:
        """Refuses an output that holds anything but an earlier export of this tool."""
        nearest = next(path for path in (self._output, *self._output.parents) if path.exists() or path.is_symlink())
        if not nearest.is_dir():  # a link that is left after realpath leads to itself
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        if nearest != self._output:
            return
        if not os.access(self._output, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._output))
        files = _manifest_files(self._output)
        foreign = _unlisted(self._entries(), self._output, {*(files or ()), MANIFEST})
        if foreign or (files is None and self._entries()):
            raise ExportError(
                "The output folder holds files which no earlier export lists; exporting there would delete them.",
                where=self._output,
                found=listed(foreign or [f"a {MANIFEST} that is not of this tool"]),
                accepted=f"a new or empty folder, or an export (with its {MANIFEST}) and nothing else",
                fix="Move these files away, or choose another output folder.",
            )

    def _entries(self) -> list[Path]:
        """What the output holds apart from our work folder, the runtime's ``LAST`` file last."""
        ours = {_INSIDE, "lost+found"} if self._inside else set()  # a fresh ext4 volume has a lost+found
        entries = _ordered(self._output) if self._output.exists() else []
        return [entry for entry in entries if entry.name not in ours]

    def _place_beside(self) -> None:
        if self._output.exists():
            self._new.chmod(stat.S_IMODE(self._output.stat().st_mode))
        if not self._entries():
            self._new.rename(self._output)  # also over an empty folder
        elif not _exchange(self._new, self._output):
            self._output.rename(self._old)
            self._new.rename(self._output)
        for folder in (self._output, *self._made):
            self._sync(folder.parent)

    def _place_inside(self) -> None:
        self._old.mkdir()
        for entry in reversed(self._entries()):  # LAST first: no model to be seen, rather than a mixed one
            entry.rename(self._old / entry.name)
        self._sync(self._old)
        self._sync(self._output)
        self._new.rename(self._placing)  # the point of no return
        self._sync(self._work)
        self._settle()

    def _settle(self) -> None:
        """Ends a commit that stopped half-way, forward or back. Wherever it is itself stopped, it can be repeated."""
        if not self._inside:
            # Where the output exists, `old` is what it replaced. An empty one was made by hand after the kill.
            if self._old.is_dir() and not self._entries():
                self._old.rename(self._output)
        elif self._placing.is_dir():
            self._move_in(self._placing)
            _remove(self._old)  # before `placing` goes: `old` alone means the way back
            self._placing.rmdir()
        elif self._old.is_dir():
            self._move_in(self._old)

    def _sync(self, path: Path) -> None:
        if not _sync(path) and not self.notes:
            self.notes.append(
                f"output: the file system of {path} cannot write folders to the disk at once; after a power cut within "
                "the next minute, export again"
            )

    def _move_in(self, source: Path) -> None:
        for entry in _ordered(source):
            entry.rename(self._output / entry.name)
        self._sync(self._output)


@contextlib.contextmanager
def mendable(output: Path) -> Iterator[None]:
    """Turns errors of the system into an ``ExportError``: permissions, room, names, locks, and any other."""
    try:
        yield
    except OSError as error:
        raise _explained(error, output) from error


def _explained(error: OSError, output: Path) -> ExportError:
    path = Path(os.path.realpath(output))
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    work = path.parent / f".{path.name}.draftsmith"
    if not any(named.is_relative_to(place) or place.is_relative_to(named) for place in (path, output, work)):
        return system_error(error, named, "a file that you may read")
    # Of what goes wrong in the middle of a file, the system says neither its name nor whether it was read or written.
    doubt = "" if error.filename or error.errno in _FIXES else f"{output}, or a file that the export reads"
    return ExportError(
        f"The output folder {output} cannot be used.",
        where=doubt or error.filename or output,
        found=error.strerror or error,
        accepted="a folder that you may write to and replace, on a file system with room and with locks",
        fix=_FIXES.get(error.errno or 0) or str(system_error(error, output).details["to do"]),
    )


def _check_input(output: Path, source: Path) -> None:
    real = Path(os.path.realpath(source))
    for folder in (real, *real.parents):
        # samefile sees what names do not tell: a bind mount, a file system that ignores case
        if folder == output or (output.exists() and folder.exists() and folder.samefile(output)):
            raise ExportError(
                "The output folder is the input itself, or holds it; the export would replace it.",
                where=output,
                found=f"input {source}" + (f" (really {real})" if real != source else ""),
                accepted="a folder that does not hold the input; one inside the input is fine",
                fix=_CHOOSE,
            )


def _is_inside(output: Path) -> bool:
    """Whether the output folder cannot be replaced as a whole, so that the work folder must stand in it."""
    if not output.is_dir():
        return False
    # A run that was killed inside must be repaired inside, even if the folder could be replaced by now.
    return (output / _INSIDE).is_dir() or _is_mount(output) or not os.access(output.parent, os.W_OK | os.X_OK)


def _is_mount(folder: Path) -> bool:
    lines = _MOUNTS.read_bytes().splitlines() if _MOUNTS.exists() else []
    points = (re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4]) for line in lines)
    return folder.is_mount() or os.fsencode(folder) in points  # is_mount misses a bind mount


def _locked(work: Path, output: Path) -> int:
    """Makes the work folder and returns a descriptor of it that holds the lock."""
    for _ in range(10):
        with contextlib.suppress(FileExistsError):
            work.mkdir()
        # Not found: the run that had the work folder removed it under our hands. Then try again.
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
            lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                break
            except OSError as error:
                with contextlib.suppress(OSError):
                    work.rmdir()
                raise OSError(error.errno, f"no lock: {error.strerror}", str(work)) from error
            if os.path.samestat(os.fstat(lock), work.lstat()):
                opened.pop_all()
                return lock
    raise ExportError(
        "Another export is writing to this output folder.",
        where=output,
        found=f"a lock on {work}",
        accepted="one export at a time",
        fix="Wait for the other export to end, or choose another output folder.",
    )


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step; False if the system cannot; only Linux can."""
    if not on_linux():
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    if (code := ctypes.get_errno()) in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _manifest_files(folder: Path) -> set[str] | None:
    """The files that an earlier export of this tool lists; None if the folder is not one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
        return None
    ours = isinstance(manifest, dict) and manifest.get("tool") == "draftsmith"
    return set(manifest["files"]) if ours and isinstance(manifest.get("files"), dict) else None


def _unlisted(entries: Sequence[Path], folder: Path, known: set[str]) -> list[str]:
    """The names, with those in sub-folders, that are neither a known file nor a folder of one."""
    paths = [path for entry in entries for path in (entry, *sorted(entry.rglob("*")))]
    known = known | {parent.as_posix() for name in known for parent in PurePosixPath(name).parents}
    return [name for path in paths if (name := path.relative_to(folder).as_posix()) not in known]


def _ordered(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda entry: (entry.name == LAST, entry.name))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> bool:
    """Flushes a file or a folder to the disk; False for a folder on a file system that cannot."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in _NO_SYNC and path.is_dir():
            return False
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)
    return True
