"""What only the nightly run has: tests marked ``nightly``, which are skipped unless NIGHTLY=1 is in the environment.

A matrix keeps a sample of its cells in every run: ``sampled`` marks the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

NIGHTLY = os.environ.get("NIGHTLY") == "1"
REASON = "for the nightly run (NIGHTLY=1)"


def sampled(values: Iterable[Any], every: int = 1, *, keep: Callable[[Any], bool] | None = None) -> list[Any]:
    """Parameters of a test, of which each ``every``-th, or those to ``keep``, are in every run, the others nightly.

    Args:
        values: The values; a tuple is the values of several arguments.
        every: One in so many is kept, from the first.
        keep: Which are kept instead.
    """
    found = []
    for number, value in enumerate(values):
        kept = number % every == 0 if keep is None else keep(value)
        parts = value if isinstance(value, tuple) else (value,)
        found.append(pytest.param(*parts, marks=() if kept else pytest.mark.nightly))
    assert any(not parameter.marks for parameter in found), "nothing is left for the run of every day"
    return found
