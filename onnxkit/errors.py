"""The one exception type for problems that a user can fix."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from onnxkit.text import clipped, escaped

_LISTED = 12  # names shown from a long list: enough to see the pattern, few enough to fit on a screen
_LONGEST_NAME = 100  # the longest name checked for a misspelling, in characters; comparing longer ones takes minutes
_SHORT_WORD, _LIKE = 3, 0.72  # letters in a short word; how alike longer ones are if one is a misspelling

ROOM = "Free some space, or use another file system."
_FIXES = {  # what to do about errors that the system reports
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Change its permissions, or use another place."),
    errno.EROFS: "The file system is read-only: use another one.",
    errno.ENOENT: "Check the path. If the file was there when the command began, somebody has moved it: run it again.",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ROOM),
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), or use a file system that takes larger ones.",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n), or run less at a time."),
    errno.EIO: "A disk, or a server behind a mount, is failing: see the system's log (dmesg), and use another disk.",
    errno.ESTALE: "The server's folder has been replaced: mount it again, then run the command again.",
    errno.ENAMETOOLONG: "Use a shorter name.",
    errno.ENOMEM: "Close other programs, or use a machine with more memory.",
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.ELOOP), "Check which files, folders and links the path names."),
}


class ExportError(Exception):
    """A mistake in what the user gave: a folder, a file, a key, a tensor, an option.

    The command prints it as one block and exits with 2. Anything that is not an ``ExportError`` is a bug and shows its
    traceback. No detail is optional: a message without one leaves the user guessing.

    Args:
        problem: What is wrong, as one sentence.
        where: The place: a file, a key, a tensor, an option.
        found: The value that was found there.
        accepted: What would be accepted instead.
        fix: What to do about it.
    """

    def __init__(self, problem: str, *, where: object, found: object, accepted: object, fix: str) -> None:
        self.problem = problem
        self.details = {"where": where, "found": found, "accepted": accepted, "to do": fix}
        super().__init__(problem)

    def __str__(self) -> str:
        """The block that is shown. Names in it come from strangers' files: a terminal must obey nothing in it."""
        lines = [clipped(escaped(self.problem))]
        for label, value in self.details.items():
            text = escaped(str(value), keep="\n" if label in ("found", "accepted") else "")
            first, *rest = text.split("\n")
            lines.append(f"  {label + ':':<10}{clipped(first)}".rstrip())
            lines.extend(" " * 12 + clipped(line) for line in rest)
        return "\n".join(lines)


def listed(names: Iterable[str]) -> str:
    """Names, one per line; a long list is cut and ends with a count of the rest."""
    names = list(names)
    lines = [escaped(name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        lines.append(f"... and {len(names) - _LISTED} more")
    return "\n".join(lines)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A sentence that suggests the known name closest to a misspelled ``name``, or None if nothing is close."""
    found = nearest(name, known)
    return f"Did you mean {found}?" if found else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is a misspelling of, or None.

    Names are compared word by word: ``exclude_lm_head`` shares most letters with ``prune_lm_head`` but means something
    else, since one of its words is not a misspelling of the other's.
    """
    if not 1 < len(name) <= _LONGEST_NAME:
        return None
    words, others = _words(name), {other: _words(other) for other in known}
    same = [other for other, parts in others.items() if "".join(parts) == "".join(words)]
    alike = {
        other: sum(map(_likeness, words, parts))
        for other, parts in others.items()
        if len(parts) == len(words) and all(map(_misspelt, words, parts))
    }
    return next(iter(same), None) or max(alike, key=lambda other: alike[other], default=None)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[_\-\s.]+", name.lower()) if word]


def _likeness(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, word, other).ratio()


def _misspelt(word: str, other: str) -> bool:
    """Whether two words are the same, one misspelt. In short ones each letter counts: cpu and gpu, min and max."""
    if sorted(word) == sorted(other):
        return True
    if min(len(word), len(other)) > _SHORT_WORD:
        return _likeness(word, other) >= _LIKE
    longer, shorter = sorted((word, other), key=len, reverse=True)
    return len(longer) == len(shorter) + 1 and any(longer[:i] + longer[i + 1 :] == shorter for i in range(len(longer)))


def system_error(error: OSError, where: object, accepted: str = "a system that can do it") -> ExportError:
    """What the system reports, as an error with a place and what to do.

    Args:
        error: The system's error.
        where: The place, if the system names none.
        accepted: What would have worked.
    """
    return ExportError(
        "The system reports an error.",
        where=error.filename if error.filename is not None else where,
        found=error.strerror or error,
        accepted=accepted,
        fix=_FIXES.get(error.errno or 0, "Fix the cause, then run the command again."),
    )


@contextmanager
def system_errors(where: object, accepted: str) -> Iterator[None]:
    """Turn what the system reports within the block into an ``ExportError``."""
    try:
        yield
    except OSError as error:
        raise system_error(error, where, accepted) from error
