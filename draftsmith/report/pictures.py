"""The report's pictures, as SVG text: where the taps read, accepted lengths, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_TEXT, _LINE = 'class="text"', 'class="line"'


def _svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>\n{body}\n</svg>"
    )


def _text(x: float, y: float, text: object, anchor: str = "start", more: str = "") -> str:
    return f'<text {_TEXT} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(str(text))}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="2"/>'


def taps(figures: Sequence[dict[str, Any]]) -> str:
    """The target's layers from the bottom up, each tap with its distance to every layer's output.

    A tap that reads where it should has one full mark: at its own layer.
    """
    streams = len(figures[0]["distances"]) if figures else 0
    row, left, column = 22, 96, 120
    height, width = streams * row + 34, left + column * max(len(figures), 1) + 10
    parts = []
    for stream in range(streams):
        y = height - 30 - (stream + 1) * row
        parts += [_box(8, y, 78, row - 4, "layer"), _text(47, y + 13, _stream(stream), "middle")]
        for place, figure in enumerate(figures):
            distance = figure["distances"][stream]
            kind = "here" if stream == figure["nearest"] else "away"
            kind = "wrong" if kind == "here" and stream != figure["tap"] else kind
            parts += [_box(left + place * column, y, column - 8, row - 4, kind)]
            parts += [_text(left + place * column + (column - 8) / 2, y + 13, f"{distance:.1e}", "middle")]
    for place, figure in enumerate(figures):
        parts.append(_text(left + place * column + (column - 8) / 2, height - 12, f"tap {figure['tap']}", "middle"))
    return _svg(width, height, parts, "Distance of each tap to the output of each layer")


def _stream(stream: int) -> str:
    return f"layer {stream - 1}" if stream else "embedding"


def bars(values: Sequence[float], labels: Sequence[str], texts: Sequence[str], title: str) -> str:
    """Upright bars from 0 to the largest value."""
    column, height, top = 44, 130, 20
    most = max([*values, 1e-9])
    parts = [f'<line {_LINE} x1="4" x2="{column * len(values)}" y1="{top + height}" y2="{top + height}"/>']
    for i, (value, label, text) in enumerate(zip(values, labels, texts, strict=True)):
        size = height * value / most
        parts.append(_box(i * column + 8, top + height - size, column - 14, size, "bar"))
        parts.append(_text(i * column + column / 2 + 1, top + height - size - 4, text, "middle"))
        parts.append(_text(i * column + column / 2 + 1, top + height + 16, label, "middle"))
    return _svg(column * len(values) + 8, height + top + 24, parts, title)


def stack(values: Sequence[tuple[str, int, str]], texts: Sequence[str], title: str) -> str:
    """One lying bar made of parts, with a line of text for each: name, size, class."""
    width, height = 520, 28
    total = sum(size for _, size, _ in values) or 1
    parts, x = [], 4.0
    for name, size, kind in values:
        length = (width - 8) * size / total
        parts.append(f"<g><title>{escape(name)}</title>{_box(x, 4, length, height, kind)}</g>")
        x += length
    for i, ((_, _, kind), text) in enumerate(zip(values, texts, strict=True)):
        y = height + 24 + 20 * i
        parts += [_box(4, y - 10, 12, 12, kind), _text(24, y, text)]
    return _svg(width, height + 20 + 20 * len(values), parts, title)


def lying_bars(values: Sequence[float], labels: Sequence[str], title: str) -> str:
    """Lying bars with their labels to the left and their values to the right."""
    row, left, width = 20, 150, 520
    most = max([*values, 1e-9])
    parts = []
    for i, (value, label) in enumerate(zip(values, labels, strict=True)):
        size = (width - left - 60) * value / most
        parts += [_text(left - 8, i * row + 15, label, "end"), _box(left, i * row + 4, size, row - 6, "bar")]
        parts.append(_text(left + size + 6, i * row + 15, f"{value:.2f}"))
    return _svg(width, row * len(values) + 8, parts, title)


def standalone(picture: str) -> str:
    """A picture as a file of its own, with colours that read on light and on dark."""
    style = (
        "<style>.text{font:11px sans-serif;fill:#667085}.bar,.target{fill:#3b6fb6}.layer,.away{fill:#c9d2e0}"
        ".line{stroke:#98a2b3}.here,.drafter{fill:#6a9f58}.wrong{fill:#b42318}.shared{fill:#d8a657}</style>"
    )
    named = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return named.replace("</title>", f"</title>{style}", 1) + "\n"
