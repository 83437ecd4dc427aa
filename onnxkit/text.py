"""Text from others, such as names and keys in a checkpoint, made safe to show."""

from __future__ import annotations

# The most characters of a line that are shown. A longer one was made to flood a terminal.
LONGEST_LINE = 2000


def escaped(text: str, keep: str = "") -> str:
    r"""The text with everything that a terminal or a browser would obey rather than show written as Python writes it.

    That is control characters (``\x1b``, a line break), those that reverse the writing direction or cannot be seen
    (``\u202e``, ``\u200b``), and halves of surrogate pairs (``\udc80``: a byte in a file name that is not UTF-8).

    Args:
        text: The text.
        keep: Characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def clipped(line: str) -> str:
    """A line, cut if it is too long to show."""
    left_out = len(line) - LONGEST_LINE
    return line if left_out <= 0 else f"{line[:LONGEST_LINE]}... ({left_out} more characters)"


def has_surrogates(text: str) -> bool:
    """Whether there are halves of surrogate pairs, which UTF-8 cannot hold."""
    return any("\ud800" <= c <= "\udfff" for c in text) if not text.isascii() else False
