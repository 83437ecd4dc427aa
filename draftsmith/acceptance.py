"""How much drafts helped: the accepted lengths of the rounds of a text, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from genai_config.runtime import ENGINE_DRAFTS


@dataclass(frozen=True)
class Acceptance:
    """How many rounds accepted 0, 1, 2, ... drafts.

    A round is one pass of the target that checks drafts. It accepts those before the first draft that differs from
    what the target says at its position; that number is the round's accepted length.

    Attributes:
        histogram: Rounds by their accepted length, from 0.
    """

    histogram: tuple[int, ...]

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Acceptance:
        """Count rounds by their accepted length, which is at most what the Engine takes in a step."""
        counts = [0] * (ENGINE_DRAFTS + 1)
        for length in lengths:
            counts[length] += 1
        return cls(tuple(counts))

    @property
    def rounds(self) -> int:
        """All rounds."""
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        """Drafts that were accepted."""
        return sum(length * count for length, count in enumerate(self.histogram))

    @property
    def mean(self) -> float:
        """The mean accepted length of a round; 0 if there were none."""
        return self.accepted / self.rounds if self.rounds else 0.0

    def by_position(self) -> list[float]:
        """For each draft of a round, from the first, the share of all rounds that accepted it.

        A draft is accepted only with all drafts before it, so the shares never rise, and their sum is the mean
        accepted length. vLLM's "per-position acceptance rate" is the same figure. It is not the share of those rounds
        that reached the position; that is ``by_position()[i] / by_position()[i - 1]``.
        """
        return [sum(self.histogram[i:]) / self.rounds if self.rounds else 0.0 for i in range(1, len(self.histogram))]

    def as_json(self) -> dict[str, Any]:
        """The figures, rounded to three digits."""
        return {
            "mean": round(self.mean, 3),
            "rounds": self.rounds,
            "histogram": list(self.histogram),
            "by_position": [round(share, 3) for share in self.by_position()],
        }

    def lines(self) -> list[str]:
        """Lines to print: the mean, rounds by accepted length as bars, shares by position."""
        most = max(self.histogram, default=0) or 1
        bars = [
            f"  {length}  {count:>6}  {'#' * round(40 * count / most)}" for length, count in enumerate(self.histogram)
        ]
        positions = "  ".join(f"{i + 1}: {share:.0%}" for i, share in enumerate(self.by_position()))
        return [
            f"mean accepted length {self.mean:.2f}",
            "accepted length, rounds:",
            *bars,
            f"accepted by position  {positions}",
        ]
