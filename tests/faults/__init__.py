"""Faults of exports, each applied by hand to a good one: what verify must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: What is wrong.
        apply: Does it to an export's folder.
        kinds: The exports that it can be done to.
    """

    name: str
    apply: Callable[[Path], object]
    kinds: tuple[str, ...] = ("dflash2", "dspark")
