"""What is run of an export: which copy, in which sessions, and how far its numbers may be from the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftsmith.validation.packed_session import CPU


@dataclass(frozen=True)
class Running:
    """A copy of an export that is run.

    Attributes:
        folder: The copy: the same files by the same names.
        work: Where further files may be written; removed when the proof ends.
        providers: onnxruntime's execution providers, in order of preference.
        limit: The largest difference of numbers that passes, over the largest value where that is above 1.
        tie: How far apart logits may be for either token to be the likeliest.
    """

    folder: Path
    work: Path
    providers: tuple[str, ...] = CPU
    limit: float = 1e-5
    tie: float = 1e-4
