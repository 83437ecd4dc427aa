"""The report's pictures: tables with bars in them, and the table of the taps.

All text belongs to the page, so it is as large on a narrow screen as on a wide one; only the bars, which are SVG
without text, grow and shrink.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

# A label, a length between 0 and 1, and the number in words.
Row = tuple[str, float, str]


def bars(rows: Sequence[Row], title: str) -> str:
    """Horizontal bars, one per row: label, bar, number. Charts to be compared need lengths on the same scale."""
    lines = [f'<table class="bars"><caption>{escape(title)}</caption>']
    for label, length, text in rows:
        lines.append(
            f'<tr><th scope="row">{escape(label)}</th><td class="track">{_strip([(length, "bar")], 12)}</td>'
            f'<td class="number">{escape(text)}</td></tr>'
        )
    return "\n".join([*lines, "</table>"])


def stack(parts: Sequence[tuple[str, int, str]], title: str) -> str:
    """One horizontal bar made of parts, and a legend: text, size, class of each."""
    total = sum(size for _, size, _ in parts) or 1
    legend = "".join(f"<li>{_swatch(kind)} {escape(text)}</li>" for text, _, kind in parts)
    whole = _strip([(size / total, kind) for _, size, kind in parts], 28)
    return f'<figure role="group" aria-label="{escape(title)}">{whole}<ul class="legend">{legend}</ul></figure>'


def taps(figures: Sequence[dict[str, Any]]) -> str:
    """The target's layers from the bottom up, each tap with its distance from every layer's output.

    A tap that reads where it should has one mark: at its own layer.
    """
    titles = "".join(f'<th scope="col">tap {figure["tap"]}</th>' for figure in figures)
    lines = [f"<table class='taps'><thead><tr><th scope='col'>output of</th>{titles}</tr></thead><tbody>"]
    for stream, name in reversed(list(enumerate(figures[0]["names"] if figures else []))):
        cells = "".join(_cell(figure, stream) for figure in figures)
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return "\n".join([*lines, "</tbody></table>"])


def _cell(figure: dict[str, Any], stream: int) -> str:
    kind, mark = "away", ""
    if stream == figure["nearest"]:
        kind, mark = ("here", " &#10003;") if stream == figure["tap"] else ("wrong", " &#10007;")
    return f'<td class="number {kind}">{figure["distances"][stream]:.1e}{mark}</td>'


def _strip(parts: Sequence[tuple[float, str]], height: int) -> str:
    """Boxes side by side, their lengths as shares of the whole width, with gaps in the page's colour between them."""
    boxes, x = [], 0.0
    for length, kind in parts:
        boxes.append(f'<rect class="{kind}" x="{x:.2%}" width="{max(length, 0):.2%}" height="{height}"/>')
        x += length
        if len(boxes) < len(parts):
            boxes.append(f'<rect class="gap" x="{x:.2%}" width="2" height="{height}"/>')
    return f'<svg height="{height}" aria-hidden="true">{"".join(boxes)}</svg>'


def _swatch(kind: str) -> str:
    return f'<svg class="swatch" aria-hidden="true"><rect class="{kind}" width="12" height="12"/></svg>'
