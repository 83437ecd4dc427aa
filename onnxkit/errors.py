"""The one exception type for what a user can mend."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from onnxkit.text import clipped, escaped

_LISTED = 12  # names shown of a long list: enough to see the pattern, few enough to stay on a screen
_LONGEST_NAME = 100  # characters of a name that could be a misspelt one; comparing longer ones takes minutes

ROOM = "Free some space, or use another file system."
_FIXES = {  # what to do about what the system reports
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Change its permissions, or use another place."),
    errno.EROFS: "The file system can only be read: use another one.",
    errno.ENOENT: "Check the path. If the file was there when the command began, somebody has moved it: run it again.",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ROOM),
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), or use a file system that takes larger ones.",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n), or run less at a time."),
    errno.EIO: "A disk, or a server behind a mount, fails: see the system's log (dmesg), and use another disk.",
    errno.ESTALE: "The server's folder has been replaced: mount it again, then run the command again.",
    errno.ENAMETOOLONG: "Use a shorter name.",
    errno.ENOMEM: "End other programs, or use a machine with more memory.",
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.ELOOP), "Check which files, folders and links the path names."),
}


class ExportError(Exception):
    """A mistake in what the user gave: a folder, a file, a key, a tensor, an option.

    The command prints it as one block and exits with 2. Anything that is not an ``ExportError`` is a bug and shows its
    traceback. No detail is optional: a message without one leaves the user to guess.

    Args:
        problem: What is wrong, as one sentence.
        where: The place: a file, a key, a tensor, an option.
        found: The value that was found there.
        accepted: What would be accepted in its place.
        fix: What to do about it.
    """

    def __init__(self, problem: str, *, where: object, found: object, accepted: object, fix: str) -> None:
        self.problem = problem
        self.details = {"where": where, "found": found, "accepted": accepted, "to do": fix}
        super().__init__(problem)

    def __str__(self) -> str:
        """The block that is shown. Names in it come from files of strangers: nothing in it is obeyed by a terminal."""
        lines = [clipped(escaped(self.problem))]
        for label, value in self.details.items():
            text = escaped(str(value), keep="\n" if label in ("found", "accepted") else "")
            first, *rest = text.split("\n")
            lines.append(f"  {label + ':':<10}{clipped(first)}".rstrip())
            lines.extend(" " * 12 + clipped(line) for line in rest)
        return "\n".join(lines)


def listed(names: Iterable[str]) -> str:
    """Names one below the other, a long list cut with a count of the rest."""
    names = list(names)
    lines = [escaped(name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        lines.append(f"... and {len(names) - _LISTED} more")
    return "\n".join(lines)


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """A sentence that proposes the known name nearest to ``name``, or None where nothing is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5) if len(name) <= _LONGEST_NAME else []
    return f"Did you mean {near[0]}?" if near else None


def system_error(error: OSError, where: object, accepted: str = "a system that can do it") -> ExportError:
    """What the system reports, as an error with a place and what to do.

    Args:
        error: The system's.
        where: The place, where the system names none.
        accepted: What would have gone well.
    """
    return ExportError(
        "The system reports an error.",
        where=error.filename if error.filename is not None else where,
        found=error.strerror or error,
        accepted=accepted,
        fix=_FIXES.get(error.errno or 0, "Mend the cause, then run the command again."),
    )


@contextmanager
def system_errors(where: object, accepted: str) -> Iterator[None]:
    """Makes what the system reports within it an ``ExportError``."""
    try:
        yield
    except OSError as error:
        raise system_error(error, where, accepted) from error
