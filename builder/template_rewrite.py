"""Chat templates, rewritten where the runtime's own template engine reads them differently from Jinja.

onnxruntime-genai 0.18 renders templates with an engine of its own, minja. What it does was measured, construct by
construct, against Jinja as transformers sets it up:

- ``'x' in text`` is false whatever the text; ``in`` works for lists and objects only.
- Methods and filters other than those below stop it, ``replace`` among them.
- Blocks keep the newline after them and the blanks before them, which transformers' settings remove.

The rewritten text is a Jinja template that renders as the original does, by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from builder.template_source import (
    Token,
    UnreadableTemplate,
    arguments,
    is_simple,
    line_of,
    operand_end,
    receiver_start,
    scan,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What the runtime's engine has.
_FILTERS = _words(
    "count default dictsort e escape indent int items join last length list lower map reject rejectattr safe select "
    "selectattr sort string tojson trim unique"
)
_METHODS = _words("append capitalize cycle endswith get insert items lstrip pop rstrip split startswith strip title")
_TESTS = _words("boolean defined false float integer iterable mapping none number sequence string true undefined")
_NO_BLOCKS: dict[type[nodes.Node], str] = {
    nodes.CallBlock: "has no call blocks",
    nodes.With: "has no with blocks",
    nodes.Block: "has no named blocks",
    nodes.Include: "has no include",
    nodes.Import: "has no import",
    nodes.Extends: "has no extends",
    nodes.Pow: "gives a power as a fraction",
    nodes.Div: "drops the fraction when it divides whole numbers",
}
_NO_GLOBALS = ("dict", "joiner", "cycler", "lipsum")


class Generation(Extension):
    """transformers' ``{% generation %}`` block, which marks what an assistant says and changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True)
class Rewritten:
    """A template that both engines are meant to read alike.

    Attributes:
        text: The template.
        changes: What was changed, each with its line in the original.
        left: What the runtime reads differently or not at all and what is not rewritten, each with its line.
    """

    text: str
    changes: tuple[str, ...]
    left: tuple[str, ...]


def rewrite(text: str) -> Rewritten:
    """Rewrite a template. One that Jinja cannot read either is left as it is, with a note."""
    environment = Environment(extensions=[loopcontrols, Generation])
    try:
        environment.parse(text)
        changes: list[str] = []
        new = _spaces(_memberships(_replacements(text, changes), text, changes), changes)
        tree = environment.parse(new)
    except TemplateSyntaxError as error:
        return Rewritten(text, (), (f"line {error.lineno}: Jinja itself cannot read it ({error.message})",))
    except UnreadableTemplate as error:
        return Rewritten(text, (), (f"it is not examined: {error}",))
    return Rewritten(new, tuple(changes), tuple(dict.fromkeys([*_left_in_source(new), *_left(tree)])))


def _replacements(text: str, changes: list[str]) -> str:
    """``x.replace(a, b)`` and ``x|replace(a, b)`` as split and join, which both engines have."""
    done = 0
    while True:
        tokens = scan(text)
        places = [i for i, token in enumerate(tokens) if token.kind == "name" and token.text == "replace"]
        for i in places[done:]:
            edit = _replacement(text, tokens, i)
            if edit:
                start, end, new = edit
                changes.append(f"line {line_of(text, tokens[i].start)}: replace, as split and join")
                text = text[:start] + new + text[end:]
                break
            done += 1
        else:
            return text


def _replacement(text: str, tokens: list[Token], i: int) -> tuple[int, int, str] | None:
    if not tokens[i - 1].is_op(".", "|") or not tokens[i + 1].is_op("("):
        return None
    parts = arguments(tokens, i + 1)
    if len(parts) != 2 or not _is_text(tokens, *parts[0]) or any(tokens[a + 1].is_op("=") for a, _ in parts):
        return None
    first, second = (text[tokens[a].start : tokens[b - 1].end] for a, b in parts)
    start = receiver_start(tokens, i - 2)
    receiver = text[tokens[start].start : tokens[i - 2].end]
    if tokens[i - 1].is_op("|"):  # the filter also takes values that are not text
        receiver = f"({receiver}|string)"
    end = tokens[parts[1][1]].end
    return tokens[start].start, end, f"({receiver}.split({first})|join({second}))"


def _is_text(tokens: list[Token], start: int, stop: int) -> bool:
    """Whether an argument is one string that is not empty."""
    return stop == start + 1 and tokens[start].kind == "string" and len(tokens[start].text) > 2


def _memberships(text: str, original: str, changes: list[str]) -> str:
    """``'x' in y`` so that it also holds for a text ``y``. From the last to the first, so that places stay valid."""
    count = sum(token.kind == "name" and token.text == "in" for token in scan(text))
    found = []
    for number in reversed(range(count)):
        tokens = scan(text)
        i = [i for i, token in enumerate(tokens) if token.kind == "name" and token.text == "in"][number]
        if edit := _membership(text, tokens, i):
            start, end, new = edit
            found.append(f"line {line_of(text, start)}: {text[start:end]}")
            text = text[:start] + new + text[end:]
    changes += reversed(found)
    return text


def _membership(text: str, tokens: list[Token], i: int) -> tuple[int, int, str] | None:
    negated = tokens[i - 1].kind == "name" and tokens[i - 1].text == "not"
    left = i - 2 if negated else i - 1
    if not _is_text(tokens, left, left + 1) or not _begins(tokens[left - 1]):
        return None
    stop = operand_end(tokens, i + 1)
    if _is_literal_list(tokens, i + 1) or not _ends(tokens[stop]):
        return None
    needle, place = tokens[left].text, text[tokens[i + 1].start : tokens[stop - 1].end]
    whole = place if is_simple(tokens, i + 1, stop) else f"({place})"
    if text[: tokens[left].start].endswith(f" if {whole} is string else "):
        return None  # rewritten before
    original = f"{needle} {'not in' if negated else 'in'} {place}"
    how = "== 1" if negated else "> 1"
    new = f"({whole}.split({needle})|length {how} if {whole} is string else {original})"
    return tokens[left].start, tokens[stop - 1].end, new


def _begins(token: Token) -> bool:
    """Whether an operand of a comparison can begin after this token."""
    keyword = token.kind == "name" and token.text in ("if", "elif", "and", "or", "not", "else")
    return token.kind == "begin" or keyword or token.is_op("(", "[", ",", "=", ":")


def _ends(token: Token) -> bool:
    """Whether a comparison can end before this token, rather than go on."""
    keyword = token.kind == "name" and token.text in ("if", "else", "and", "or", "recursive")
    return token.kind == "end" or keyword or token.is_op(")", "]", ",", "}", ":")


def _is_literal_list(tokens: list[Token], i: int) -> bool:
    if tokens[i].is_op("(") and len(arguments(tokens, i)) == 1 and not tokens[arguments(tokens, i)[0][1]].is_op(","):
        return False
    return tokens[i].is_op("(", "[", "{")


def _spaces(text: str, changes: list[str]) -> str:
    """The newline after a block and the blanks before it left out, as ``trim_blocks`` and ``lstrip_blocks`` do."""
    tokens = scan(text)
    pieces, trimmed = [], True
    for i, token in enumerate(tokens):
        piece = token.text if token.kind in ("data", "comment") else text[token.start : token.end]
        gap = text[tokens[i - 1].end : token.start] if i else ""
        follows = tokens[i + 1] if i + 1 < len(tokens) else None
        stripped = follows and follows.text.startswith(("{%-", "{{-", "{#-")) and piece.isspace()
        if token.kind != "data" or stripped:
            pieces.append(gap + piece)
            trimmed = False
            continue
        if i and _closes_block(tokens[i - 1]) and piece.startswith("\n"):
            piece, trimmed = piece[1:], True
        line = piece.rfind("\n") + 1
        if follows and _opens_block(follows) and (line or trimmed) and not piece[line:].strip(" \t\v\f"):
            piece = piece[:line]
        if i and _closes_block(tokens[i - 1]) and piece.startswith("\n"):
            piece = "{{ '' }}" + piece  # else transformers would leave out this newline as well
        pieces.append(piece)
        trimmed = False
    new = "".join(pieces)
    if new != text:
        changes.append("the newlines after blocks and the blanks before them, which transformers leaves out")
    return new


def _closes_block(token: Token) -> bool:
    return token.text.endswith(("%}", "#}")) and not token.text.endswith(("-%}", "+%}", "-#}", "+#}"))


def _opens_block(token: Token) -> bool:
    opens = token.kind == "comment" or token.text.startswith("{%")
    return opens and not token.text.startswith(("{%-", "{%+", "{#-", "{#+"))


def _left_in_source(text: str) -> Iterator[str]:
    tokens = scan(text)
    for i, token in enumerate(tokens):
        line = f"line {line_of(text, token.start)}"
        if token.kind in ("begin", "end") and "+" in token.text:
            yield f"{line}: the runtime does not know {token.text}"
        if token.kind != "name" or token.text != "in" or i < 1 or tokens[i - 1].kind == "begin":
            continue
        negated = tokens[i - 1].text == "not"
        if tokens[i - 1 - negated].kind == "string" and not _is_literal_list(tokens, i + 1):
            before = text[: tokens[i - 1 - negated].start]
            if not before.endswith(" is string else "):
                yield f"{line}: the runtime never finds {tokens[i - 1 - negated].text} in a text"


def _left(tree: nodes.Template) -> Iterator[str]:
    """What the runtime's engine does not have."""
    for node in tree.find_all(nodes.Node):
        if what := _unknown(node):
            yield f"line {node.lineno}: the runtime {what}"


def _unknown(node: nodes.Node) -> str | None:
    """What the runtime does instead of what a node asks for; None if it does the same."""
    if isinstance(node, nodes.Filter):
        if node.name == "trim" and node.args:
            return "trims blanks only"
        return None if node.name in _FILTERS else f"has no filter {node.name}"
    if isinstance(node, nodes.Test):
        return None if node.name in _TESTS else f"has no test {node.name}"
    if isinstance(node, nodes.Call):
        called = node.node
        if isinstance(called, nodes.Getattr) and called.attr not in _METHODS:
            return f"has no method {called.attr}"
        if isinstance(called, nodes.Name) and called.name in _NO_GLOBALS:
            return f"has no function {called.name}"
    if isinstance(node, nodes.Compare):
        return "reads a chain of comparisons as another" if len(node.ops) > 1 else None
    if isinstance(node, nodes.Assign):
        return "sets one name at a time" if isinstance(node.target, nodes.Tuple) else None
    return _NO_BLOCKS.get(type(node))
