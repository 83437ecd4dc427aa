"""How an export is run: which copy, where, and how far its numbers may be from the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftsmith.validation.session import CPU, Place


@dataclass(frozen=True)
class Running:
    """A copy of an export that is run.

    In float32 a fixed limit tells right from wrong. In 16 bits rounding adds up with depth and width, so the limit
    is measured: how far PyTorch's own run of the same checkpoint, in the same type, on the same tokens is from float32,
    times ``multiple``.

    Attributes:
        folder: The copy: the same files under the same names.
        work: Where further files may be written; removed when the proof ends.
        place: Where its graphs run.
        data: The folder that really holds the weights, if the copy has links to them: a graph that is changed, and so
            is not a link, may not read files elsewhere through links.
        limit: The largest difference that passes, divided by the largest value if that is above 1; in 16 bits the
            smallest that a limit can be.
        tie: How far apart logits may be for either token to count as the likeliest; in 16 bits this is also measured.
        multiple: How many times the error of PyTorch's own run in 16 bits is allowed; 0 if the copy runs in float32.
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
        """The limit, given the error of PyTorch's own run in 16 bits."""
        return max(self.limit, self.multiple * (own or 0.0))
