"""Pictures for the docs, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_TEXT = 'class="text"'


def _svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>\n{body}\n</svg>"
    )


def _text(x: float, y: float, text: object, anchor: str = "start", more: str = "") -> str:
    return f'<text {_TEXT} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(str(text))}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="2"/>'


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
    """A picture as a file of its own, on white, so that it reads on a page that is light or dark."""
    style = "<style>svg{background:#fff}.text{font:12px sans-serif;fill:#1c2330}.bar{fill:#3b6fb6}</style>"
    named = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return named.replace("</title>", f"</title>{style}", 1) + "\n"
