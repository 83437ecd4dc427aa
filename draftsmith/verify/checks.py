"""What a check says: what was compared, how far apart it was, how far it may be, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Verdict(Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: Its short name.
        what: What was compared with what; where it failed or was skipped, why.
        verdict: How it ended.
        error: The largest difference, where numbers were compared.
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
        return "\n".join(
            [f"{self.verdict.value:<7}  {self.name}: {first}{numbers}", *(f"         {line}" for line in rest)]
        )

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

    def compared(self, name: str, what: str, error: float, limit: float) -> Check:
        """Note a comparison of numbers. What is not a number is a failure, too."""
        verdict = Verdict.PASSED if error <= limit else Verdict.FAILED
        return self.add(Check(name, what, verdict, error, limit))

    def stated(self, name: str, what: str, faults: list[str]) -> Check:
        """Note a check that has no number: it passes where there are no faults."""
        verdict = Verdict.FAILED if faults else Verdict.PASSED
        return self.add(Check(name, "\n".join([what, *faults]), verdict))

    def skipped(self, name: str, why: str) -> None:
        """Note a check that could not be done."""
        self.add(Check(name, why, Verdict.SKIPPED))

    @contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """Within it, an error of the runtime or of what is compared is a failure of the check, not the end."""
        try:
            yield
        except Exception as error:  # a broken export can break anything that touches it
            text = str(error).strip().splitlines() or [type(error).__name__]
            self.add(Check(name, f"stopped: {text[0][:300]}", Verdict.FAILED))

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.verdict is Verdict.FAILED]

    def summary(self) -> str:
        """One line."""
        counts = {verdict: sum(check.verdict is verdict for check in self.checks) for verdict in Verdict}
        return ", ".join(f"{count} {verdict.value.lower()}" for verdict, count in counts.items() if count)
