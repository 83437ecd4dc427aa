"""What the doctor has found: one line each, and further lines below it if something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from onnxkit.errors import ExportError


class State(Enum):
    """The state of a thing."""

    GOOD = "ok"
    WRONG = "WRONG"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What was looked at.
        state: Its state.
        what: What was found; why it was skipped.
        faults: What is wrong with it and what to do, one line each.
    """

    name: str
    state: State
    what: str
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.state.value:<7}  {self.name}: {self.what}", *(f"         {line}" for line in self.faults)]
        )

    def as_json(self) -> dict[str, Any]:
        """The finding for a JSON file."""
        return asdict(self) | {"state": self.state.value}


@dataclass
class Findings:
    """The findings so far, in order.

    Attributes:
        tell: Called with each finding at once.
        items: The findings.
        figures: What is installed and what the machine has, for programs to read.
    """

    tell: Callable[[Finding], object] = print
    items: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def note(self, name: str, what: str, faults: Sequence[str] = ()) -> bool:
        """Note a thing, which is good if there are no faults; returns whether it is."""
        self._add(Finding(name, State.WRONG if faults else State.GOOD, what, tuple(faults)))
        return not faults

    def skipped(self, name: str, why: str) -> None:
        """Note a thing that was not looked at."""
        self._add(Finding(name, State.SKIPPED, why))

    def checked(self, name: str, what: str, check: Callable[[], object]) -> bool:
        """Note a thing that is good if a check raises no ``ExportError``; returns whether it is."""
        try:
            check()
        except ExportError as error:
            return self.note(name, what, str(error).splitlines())
        return self.note(name, what)

    def _add(self, finding: Finding) -> None:
        self.items.append(finding)
        self.tell(finding)

    @property
    def wrong(self) -> list[Finding]:
        """What is wrong."""
        return [finding for finding in self.items if finding.state is State.WRONG]

    def summary(self) -> str:
        """One line."""
        count = len(self.wrong)
        return "all is well" if not count else f"{count} {'thing is' if count == 1 else 'things are'} wrong"

    def as_json(self) -> dict[str, Any]:
        """All of it for a JSON file."""
        return {**self.figures, "findings": [item.as_json() for item in self.items], "well": not self.wrong}
