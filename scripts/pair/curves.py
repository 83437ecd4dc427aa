"""The figure of the learning curves, as plain SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.pair.optimizing import Log

WIDTH, HEIGHT, LEFT, TOP, GAP = 240, 170, 44, 36, 64
COLOURS = {"target": "#444444", "dflash2": "#1f6fb4", "dspark": "#a84e14"}


@dataclass(frozen=True)
class Panel:
    """One of the figure's panels.

    Attributes:
        title: What is drawn.
        key: The log's entry that is drawn over the steps.
        curves: The logs by the name of what was trained.
        top: The largest value of the axis.
        ticks: The values that are named.
    """

    title: str
    key: str
    curves: Mapping[str, Log]
    top: float
    ticks: Sequence[float]

    def drawn(self, left: int) -> list[str]:
        """The panel's elements, its own left edge at ``left``."""
        steps = max(log[-1]["step"] for log in self.curves.values())
        bottom = TOP + HEIGHT
        parts = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{self.title}</text>']
        for tick in self.ticks:
            y = bottom - HEIGHT * tick / self.top
            parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for step in (0, steps / 2, steps):
            x = left + WIDTH * step / steps
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{step:g}</text>')
        for row, (name, log) in enumerate(self.curves.items()):
            points = " ".join(
                f"{left + WIDTH * entry['step'] / steps:.1f},"
                f"{bottom - HEIGHT * min(entry[self.key], self.top) / self.top:.1f}"
                for entry in log
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
            if len(self.curves) > 1:
                y = TOP + HEIGHT * 0.55 + 16 * row
                parts.append(
                    f'<text x="{left + WIDTH - 4}" y="{y:.1f}" text-anchor="end" fill="{COLOURS[name]}">{name}</text>'
                )
        parts.append(f'<text x="{left + WIDTH / 2}" y="{bottom + 34}" text-anchor="middle">step</text>')
        return parts


def draw(path: Path, logs: Mapping[str, Log]) -> None:
    """Draw the target's loss, the drafters' loss and their mean accepted length."""
    drafters = {name: log for name, log in logs.items() if name != "target"}
    panels = [
        Panel("target: loss (nats per token)", "loss", {"target": logs["target"]}, 7, range(8)),
        Panel("drafters: loss (nats, both scores)", "loss", drafters, 14, range(0, 15, 2)),
        Panel("drafters: accepted of 7", "accepted", drafters, 7, range(8)),
    ]
    width, height = len(panels) * (WIDTH + GAP), TOP + HEIGHT + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += panel.drawn(LEFT + number * (WIDTH + GAP))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
