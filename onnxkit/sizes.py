"""Byte counts in readable form."""

from __future__ import annotations


def readable(size: int) -> str:
    """A number of bytes in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"
