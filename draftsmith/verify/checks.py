"""What a check reports: what was compared, how far apart it was, how far it may be, and the verdict."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from draftsmith.verify.machine import MachineError, no_machine_trouble
from onnxkit.text import escaped


class Verdict(Enum):
    """How a check ended, and how a proof as a whole did. Incomplete: nothing is wrong, but not all was compared."""

    PASSED = "passed"
    INCOMPLETE = "incomplete"
    FAILED = "FAILED"


@dataclass
class Worst:
    """The largest of some differences. What is not finite counts as the largest; no comparison is no proof.

    Attributes:
        value: The largest so far; None if nothing was compared.
    """

    value: float | None = None

    def add(self, error: float) -> None:
        """Note a difference."""
        error = error if math.isfinite(error) else math.inf
        self.value = error if self.value is None else max(self.value, error)


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: Its short name.
        what: What was compared with what; if it failed or could not be done, why.
        verdict: How it ended.
        error: The largest difference, if numbers were compared.
        limit: The largest that passes.
    """

    name: str
    what: str
    verdict: Verdict
    error: float | None = None
    limit: float | None = None

    def __str__(self) -> str:
        numbers = f"  {self.error:.1e} of {self.limit:.0e}" if self.error is not None and self.limit is not None else ""
        first, *rest = self.what.splitlines() or [""]
        lines = [f"{self.verdict.value:<10}  {self.name}: {first}{numbers}", *(f"            {line}" for line in rest)]
        return "\n".join(map(escaped, lines))

    def as_json(self) -> dict[str, Any]:
        """The check for a JSON file."""
        return asdict(self) | {"verdict": self.verdict.value}


@dataclass
class Results:
    """The checks so far, in order.

    Attributes:
        checks: The checks.
        figures: Further numbers for the report, by name.
        tell: Called with each check as it ends.
    """

    tell: Callable[[Check], object] = print
    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, check: Check) -> Check:
        """Note a check."""
        self.checks.append(check)
        self.tell(check)
        return check

    def compared(self, name: str, what: str, worst: Worst, limit: float, fault: str = "") -> Check:
        """Note a comparison of numbers. It fails if one is not finite, and if there were none.

        Args:
            name: The check.
            what: What was compared with what.
            worst: The largest difference.
            limit: The largest that passes.
            fault: What to say instead if it fails.
        """
        if worst.value is None:
            return self.add(Check(name, f"nothing was compared: {what}", Verdict.FAILED))
        if worst.value <= limit:
            return self.add(Check(name, what, Verdict.PASSED, worst.value, limit))
        return self.add(Check(name, fault or f"beyond the limit: {what}", Verdict.FAILED, worst.value, limit))

    def stated(self, name: str, what: str, faults: Sequence[str], count: int | None = None) -> Check:
        """Note a check that has no number: it passes if there are no faults.

        Args:
            name: The check.
            what: What holds if it passes.
            faults: What is wrong, one line each; these lines come first, then ``what`` as what was expected.
            count: How many things were compared; if 0, it fails.
        """
        if count == 0:
            faults = ["nothing was compared", *faults]
        if not faults:
            return self.add(Check(name, what, Verdict.PASSED))
        return self.add(Check(name, "\n".join([*faults, f"expected: {what}"]), Verdict.FAILED))

    def incomplete(self, name: str, why: str) -> None:
        """Note a check that could not be done, or not in full."""
        self.add(Check(name, why, Verdict.INCOMPLETE))

    @contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """Within it, an error in the runtime or in what is compared fails the check and does not end the proof.

        Raises:
            MachineError: The machine is at fault, which says nothing about the export.
        """
        try:
            with no_machine_trouble():
                yield
        except MachineError:
            raise
        except Exception as error:  # a broken export can break anything that touches it
            text = str(error).strip().splitlines() or [type(error).__name__]
            self.add(Check(name, f"stopped: {text[0][:300]}", Verdict.FAILED))

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.verdict is Verdict.FAILED]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole: the worst of all checks'. Without any checks, nothing is proved."""
        found = {check.verdict for check in self.checks}
        if not found:
            return Verdict.INCOMPLETE
        return next(v for v in (Verdict.FAILED, Verdict.INCOMPLETE, Verdict.PASSED) if v in found)

    def summary(self) -> str:
        """How many checks ended with each verdict."""
        counts = {verdict: sum(check.verdict is verdict for check in self.checks) for verdict in Verdict}
        return ", ".join(f"{count} {verdict.value.lower()}" for verdict, count in counts.items() if count)


SENTENCES = {
    Verdict.PASSED: "The export passes: everything was compared, and nothing differs",
    Verdict.INCOMPLETE: "The proof is incomplete: nothing differs, but not everything was compared",
    Verdict.FAILED: "The export fails",
}

_COLOURS = {Verdict.PASSED: 32, Verdict.INCOMPLETE: 33, Verdict.FAILED: 31}


def coloured(text: str, verdict: Verdict) -> str:
    """A text whose first word has its verdict's colour, if a terminal shows it (and NO_COLOR is not set)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    word, separator, rest = text.partition(" ")
    return f"\x1b[{_COLOURS[verdict]}m{word}\x1b[0m{separator}{rest}"
