"""The one exception type for what a user can mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_LISTED = 12  # names shown of a long list: enough to see the pattern, few enough to stay on a screen


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
        lines = [self.problem]
        for label, value in self.details.items():
            first, *rest = str(value).splitlines() or [""]
            lines.append(f"  {label + ':':<10}{first}".rstrip())
            lines.extend(" " * 12 + line for line in rest)
        return "\n".join(lines)


def listed(names: Iterable[str]) -> str:
    """Names one below the other, a long list cut with a count of the rest."""
    names = list(names)
    lines = names[:_LISTED]
    if len(names) > _LISTED:
        lines.append(f"... and {len(names) - _LISTED} more")
    return "\n".join(lines)


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """A sentence that proposes the known name nearest to ``name``, or None where nothing is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {near[0]}?" if near else None
