"""Trouble with the machine, which is not a verdict on an export: caught beforehand if possible, else told apart."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onnxkit.errors import ExportError
from onnxkit.sizes import readable

# Errors of the system that say nothing about an export.
_TROUBLE = {
    errno.ENOSPC: "Free some space, or set TMPDIR to a folder of a larger file system.",
    errno.EDQUOT: "Free some space, or set TMPDIR to a folder without such a quota.",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f).",
    errno.EROFS: "Set TMPDIR to a folder that you may write to.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n).",
    errno.ENFILE: "Close other programs, or raise the system's limit on open files.",
    errno.ENOMEM: "Free some memory, or use a larger machine.",
    errno.EIO: "Check the disk (dmesg), and copy the files elsewhere.",
}

# How onnxruntime, torch and C++ say that memory has run out.
_NO_MEMORY = re.compile(r"bad_alloc|can't allocate memory|Failed to allocate memory|out of memory", re.IGNORECASE)

_MEMORY, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_SLACK = 64 << 20


class MachineError(ExportError):
    """The proof could not be done for lack of something that is not part of the export."""


def machine_trouble(error: Exception) -> MachineError | None:
    """What to report for an error caused by the machine; None if it is not."""
    number = error.errno if isinstance(error, OSError) else None
    memory = isinstance(error, MemoryError) or (not isinstance(error, OSError) and _NO_MEMORY.search(str(error)))
    if number not in _TROUBLE and not memory:
        return None
    place = getattr(error, "filename", None) or tempfile.gettempdir()
    return MachineError(
        "The proof could not be finished on this machine.",
        where=place if number else "this machine's memory",
        found=(str(error).splitlines() or [type(error).__name__])[0][:300],
        accepted="room for a copy of the export in float32, on the disk and in memory",
        fix=_TROUBLE[number] if number else _TROUBLE[errno.ENOMEM],
    )


@contextmanager
def no_machine_trouble() -> Iterator[None]:
    """Within it, errors of the machine become a :class:`MachineError`; all others stay as they are."""
    try:
        yield
    except Exception as error:
        if trouble := machine_trouble(error):
            raise trouble from error
        raise


def check_room(needed: int) -> None:
    """Check that the temporary folder has room for ``needed`` bytes.

    Raises:
        MachineError: It does not, or there is no temporary folder.
    """
    try:
        place = tempfile.gettempdir()
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise MachineError(
            "There is no temporary folder.",
            where="TMPDIR",
            found=error.strerror or error,
            accepted="a folder that you may write to",
            fix="Set TMPDIR to one.",
        ) from error
    if free < needed + _SLACK:
        raise MachineError(
            "There is not enough room for the copy that is run.",
            where=place,
            found=f"{readable(free)} free",
            accepted=f"{readable(needed + _SLACK)}: the export's graphs in float32",
            fix=_TROUBLE[errno.ENOSPC],
        )


def check_memory(needed: int) -> None:
    """Check that ``needed`` bytes of memory are available.

    Raises:
        MachineError: They are not.
    """
    free = available_memory()
    if free is not None and free < needed:
        raise MachineError(
            "There is not enough memory for the proof.",
            where="this machine's memory",
            found=f"{readable(free)} available",
            accepted=f"about {readable(needed)}: the reference and the copy that is run, both in float32",
            fix="Free some, use a larger machine, or compare the files alone (--files).",
        )


def available_memory() -> int | None:
    """Bytes that a process can still get, from the system and from its control group; None if unknown."""
    found: list[int] = []
    with suppress(OSError):
        for line in _MEMORY.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
    with suppress(OSError, ValueError):  # "max" is not a number: no limit
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)$", (_GROUP / "memory.stat").read_text(), re.MULTILINE)
        found.append(limit - used + (int(cached[1]) if cached else 0))
    return min(found, default=None)


def check_writable(path: Path) -> None:
    """Check that a file can be written, without leaving anything behind.

    Raises:
        MachineError: It cannot.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.exists():
            with path.open("ab"):
                pass
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> MachineError:
    """The error that says that the report cannot be written."""
    return MachineError(
        "The report cannot be written.",
        where=f"--report {path}",
        found=error.strerror or error,
        accepted="a file in a folder that you may write to",
        fix="Name another file, or make the folder first.",
    )
