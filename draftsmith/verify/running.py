"""What is run of an export: which copy, where, and how far its numbers may be from the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftsmith.validation.session import CPU, Place


@dataclass(frozen=True)
class Running:
    """A copy of an export that is run.

    In float32 a fixed limit tells right from wrong. In 16 bits rounding adds up with depth and width, so that the limit
    is measured: how far PyTorch's own run of the same checkpoint, in the same type, on the same tokens is from float32,
    times ``multiple``.

    Attributes:
        folder: The copy: the same files by the same names.
        work: Where further files may be written; removed when the proof ends.
        place: Where its graphs run.
        data: The folder in which the weights really are, where the copy has links to them: a graph that is changed, and
            so is no link, may not read files elsewhere through links.
        limit: The largest difference of numbers that passes, over the largest value where that is above 1; in 16 bits
            the least that a limit can be.
        tie: How far apart logits may be for either token to be the likeliest; in 16 bits that is measured, too.
        multiple: How many times the error of PyTorch's own run in 16 bits may be; 0 where the copy runs in float32.
    """

    folder: Path
    work: Path
    place: Place = CPU
    data: Path | None = None
    limit: float = 1e-5
    tie: float = 1e-4
    multiple: float = 0.0

    @property
    def rounds(self) -> bool:
        """Whether it computes in 16 bits, so that limits are measured."""
        return self.multiple > 0

    def allows(self, own: float | None) -> float:
        """The limit, beside the error of PyTorch's own run in 16 bits."""
        return max(self.limit, self.multiple * (own or 0.0))
