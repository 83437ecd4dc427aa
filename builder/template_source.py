"""The source text of a chat template, taken apart far enough to change single expressions and leave all else as it is.

Jinja's own parser forgets where in a line an expression stands, so that what it gives cannot be written back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_BEGIN = re.compile(r"\{(?P<kind>[%{#])[-+]?")
_INSIDE = re.compile(
    r"""\s*(?:(?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|(?P<name>[^\W\d]\w*)|(?P<number>\d[\w.]*)"""
    r"""|(?P<op>//|\*\*|==|!=|<=|>=|.))""",
    re.DOTALL,
)
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_KEYWORDS = ("and", "or", "not", "in", "is", "if", "elif", "else", "for", "set", "recursive")
_ARITHMETIC = ("+", "-", "~", "*", "/", "//", "%", "**")


class UnreadableTemplate(ValueError):
    """The text is not a template, or has a part that this module cannot parse."""


@dataclass(frozen=True)
class Token:
    """A piece of a template.

    Attributes:
        kind: ``data``, ``comment``, a tag's ``begin`` or ``end``; inside tags ``string``, ``name``, ``number``, ``op``.
        text: The piece.
        start: Where it begins in the source.
        end: Where it ends.
    """

    kind: str
    text: str
    start: int
    end: int

    def is_op(self, *texts: str) -> bool:
        """Whether it is one of these operators."""
        return self.kind == "op" and self.text in texts


def scan(source: str) -> list[Token]:
    """The pieces of a template in order; blanks inside tags are left out.

    Raises:
        UnreadableTemplate: A tag has no end, or the template has a raw block.
    """
    tokens: list[Token] = []
    at = 0
    while found := _BEGIN.search(source, at):
        if found.start() > at:
            tokens.append(Token("data", source[at : found.start()], at, found.start()))
        if found["kind"] == "#":
            end = source.find("#}", found.end()) + 2
            if end < 2:
                raise UnreadableTemplate("a comment has no end")
            tokens.append(Token("comment", source[found.start() : end], found.start(), end))
        else:
            tokens.append(Token("begin", found[0], found.start(), found.end()))
            end = _scan_tag(source, found.end(), "%}" if found["kind"] == "%" else "}}", tokens)
        at = end
    if at < len(source):
        tokens.append(Token("data", source[at:], at, len(source)))
    if any(a.text.startswith("{%") and b.text == "raw" for a, b in pairwise(tokens)):
        raise UnreadableTemplate("it has a raw block")
    return tokens


def _scan_tag(source: str, at: int, closing: str, tokens: list[Token]) -> int:
    """Add the tokens of a tag, its end among them; gives where it ends."""
    close = re.compile(rf"\s*(?P<end>[-+]?{re.escape(closing)})")
    open_brackets = 0
    while at < len(source):
        if not open_brackets and (found := close.match(source, at)):
            tokens.append(Token("end", found["end"], found.start("end"), found.end()))
            return found.end()
        if (found := _INSIDE.match(source, at)) is None:
            break
        kind = str(found.lastgroup)
        token = Token(kind, found[kind], found.start(kind), found.end())
        open_brackets += token.is_op(*_CLOSERS) - token.is_op(*_CLOSERS.values())
        tokens.append(token)
        at = found.end()
    raise UnreadableTemplate(f"a tag has no {closing}")


def line_of(source: str, position: int) -> int:
    """The line of a position, from 1."""
    return source.count("\n", 0, position) + 1


def closing(tokens: Sequence[Token], index: int) -> int:
    """The index of the bracket that closes the one at ``index``."""
    depth = 0
    for i in range(index, len(tokens)):
        depth += tokens[i].is_op(*_CLOSERS) - tokens[i].is_op(*_CLOSERS.values())
        if not depth:
            return i
    raise UnreadableTemplate("a bracket is not closed")


def _opening(tokens: Sequence[Token], index: int) -> int:
    """The index of the bracket that the one at ``index`` closes."""
    depth = 0
    for i in range(index, -1, -1):
        depth += tokens[i].is_op(*_CLOSERS.values()) - tokens[i].is_op(*_CLOSERS)
        if not depth:
            return i
    raise UnreadableTemplate("a bracket is not opened")


def arguments(tokens: Sequence[Token], index: int) -> list[tuple[int, int]]:
    """The arguments of a call whose bracket is at ``index``: for each, the indices ``[start, stop)`` of its tokens."""
    end, start, depth = closing(tokens, index), index + 1, 0
    found = []
    for i in range(index + 1, end + 1):
        if i == end or (not depth and tokens[i].is_op(",")):
            if i > start:
                found.append((start, i))
            start = i + 1
        depth += tokens[i].is_op(*_CLOSERS) - tokens[i].is_op(*_CLOSERS.values())
    return found


def operand_end(tokens: Sequence[Token], index: int) -> int:
    """The index after an operand of a comparison that begins at ``index``: attributes, calls, filters, sums."""
    end = _term_end(tokens, index)
    while tokens[end].is_op(*_ARITHMETIC):
        end = _term_end(tokens, end + 1)
    return end


def _term_end(tokens: Sequence[Token], index: int) -> int:
    end = closing(tokens, index) + 1 if tokens[index].is_op(*_CLOSERS) else index + 1
    while True:
        if tokens[end].is_op("(", "["):
            end = closing(tokens, end) + 1
        elif tokens[end].is_op(".", "|"):
            end += 2
        else:
            return end


def is_simple(tokens: Sequence[Token], start: int, stop: int) -> bool:
    """Whether ``tokens[start:stop]`` can have a method called on it without brackets around."""
    i = start
    while i < stop:
        if tokens[i].is_op("|", *_ARITHMETIC):
            return False
        i = closing(tokens, i) + 1 if tokens[i].is_op(*_CLOSERS) else i + 1
    return True


def receiver_start(tokens: Sequence[Token], last: int) -> int:
    """The index where that begins which ends at ``last`` and which a method or a filter is applied to."""
    i = last
    while True:
        if tokens[i].is_op(")", "]"):
            i = _opening(tokens, i)
            before = tokens[i - 1]
            called = (before.kind == "name" and before.text not in _KEYWORDS) or before.is_op(")", "]")
            if called or (tokens[i].is_op("[") and before.kind == "string"):
                i -= 1
                continue
            return i
        if not tokens[i - 1].is_op(".", "|"):
            return i
        i -= 2
