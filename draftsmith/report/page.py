"""The report as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from draftsmith.acceptance import Acceptance
from draftsmith.report import pictures
from draftsmith.report.facts import facts
from draftsmith.report.memory import plan_of, weights_of
from draftsmith.report.style import STYLE
from draftsmith.verify.checks import SENTENCES, Results, Verdict
from draftsmith.verify.folder import ExportFolder
from draftsmith.verify.machine import unwritable
from onnxkit.sizes import readable
from onnxkit.text import escaped


def page(export: ExportFolder, results: Results, when: datetime) -> str:
    """The whole file, for a proof made at that time."""
    name = export.path.resolve().name
    body = "\n".join(
        [
            *_summary(export, results, when),
            *_checks(results),
            *_taps(results),
            *_ranges(results),
            *_acceptance(results),
            *_sizes(export),
        ]
    )
    whole = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}: proof of an export</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
    return escaped(whole, keep="\n")  # it holds names from untrusted files


def write_report(path: Path, export: ExportFolder, results: Results) -> None:
    """Write the page.

    Raises:
        ExportError: It cannot be written.
    """
    try:
        path.write_text(page(export, results, datetime.now(UTC)), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from error


def _summary(export: ExportFolder, results: Results, when: datetime) -> Iterator[str]:
    verdict = results.verdict
    yield f"<h1>{escape(export.path.resolve().name)}</h1>"
    yield f'<p><span class="verdict {_kind(verdict)}">{SENTENCES[verdict]}</span>: {escape(results.summary())}.</p>'
    rows = (f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in facts(export, results, when))
    yield f"<table class='facts'>{''.join(rows)}</table>"


def _checks(results: Results) -> Iterator[str]:
    titles = "".join(f"<th>{title}</th>" for title in ("verdict", "check", "what", "error"))
    yield f"<h2>Checks</h2>\n<table class='checks'><thead><tr>{titles}</tr></thead><tbody>"
    for check in results.checks:
        kind = _kind(check.verdict)
        what = "<br>".join(escape(line) for line in check.what.splitlines())
        numbers = check.error is not None and check.limit is not None
        error = f"{check.error:.1e} of {check.limit:.0e}" if numbers else ""
        yield (
            f'<tr><td class="verdict {kind}">{kind}</td> <td>{escape(check.name)}</td><td>{what}</td>'
            f'<td class="number">{error}</td></tr>'
        )
    yield "</tbody></table>"


def _kind(verdict: Verdict) -> str:
    """A verdict as a word on the page, which is also its CSS class."""
    return verdict.value.lower()


def _ranges(results: Results) -> Iterator[str]:
    """Both charts have the same scale, so that the drafter's bars can be compared with the target's."""
    charts: dict[str, list[tuple[str, float]]] = {
        title: results.figures.get(name, []) for name, title in (("ranges", "target"), ("drafter ranges", "drafter"))
    }
    most = max((value for rows in charts.values() for _, value in rows if math.isfinite(value)), default=0.0) or 1.0
    if not any(charts.values()):
        return
    yield f"<h2>Largest values</h2><p>Of each layer, on the tokens that were run; bars go from 0 to {most:.2f}.</p>"
    yield '<div class="figures">'
    for title, rows in charts.items():
        if rows:
            lengths = [value / most if math.isfinite(value) else 1.0 for _, value in rows]
            yield pictures.bars(
                [(place, length, f"{value:.2f}") for (place, value), length in zip(rows, lengths, strict=True)],
                title.capitalize(),
            )
    yield "</div>"


def _taps(results: Results) -> Iterator[str]:
    figures: list[dict[str, Any]] = results.figures.get("taps", [])
    if figures and figures[0]["distances"]:
        yield "<h2>Where the taps read</h2>"
        yield "<p>Each tap's largest distance from the output of each layer; it should be nearest to its own.</p>"
        yield f'<div class="wide">{pictures.taps(figures)}</div>'


def _acceptance(results: Results) -> Iterator[str]:
    engine = results.figures.get("engine")
    if not engine or not sum(engine["histogram"]):
        return
    found = Acceptance(tuple(engine["histogram"]))
    yield "<h2>Drafts</h2>"
    yield (
        f"<p>{engine['proposed']} proposed, {found.accepted} accepted in {found.rounds} rounds: {found.mean:.2f} a "
        'round. <span class="mute">Short runs, some of random tokens; run speculate for prompts of your own.</span></p>'
    )
    rounds = [
        (f"{length} accepted", count / found.rounds, f"{count / found.rounds:.0%} ({count})")
        for length, count in enumerate(found.histogram)
    ]
    shares = [(f"draft {place}", share, f"{share:.0%}") for place, share in enumerate(found.by_position(), 1)]
    yield "<p>Both charts show shares of all rounds, from 0 to 100%.</p>"
    yield '<div class="figures">'
    yield pictures.bars(rounds, "Rounds by accepted length")
    yield pictures.bars(shares, "Rounds that accepted each draft")
    yield "</div>"


def _sizes(export: ExportFolder) -> Iterator[str]:
    weights, plan = weights_of(export), plan_of(export)
    parts = [("target", weights.target, "target")]
    if export.drafter:
        parts += [("shared by both", weights.shared, "shared"), ("drafter", weights.drafter, "drafter")]
    parts = [(f"{name}: {readable(size)}", size, kind) for name, size, kind in parts]
    yield "<h2>Weights</h2>"
    yield pictures.stack(parts, "Weights by owner")
    yield "<h2>Memory while it runs</h2><table>"
    for name, size in plan.rows():
        yield f'<tr><td>{escape(name)}</td><td class="number">{readable(size)}</td></tr>'
    tokens = f"{plan.target_token} B a token"
    tokens += f", and {plan.drafter_token} B for the drafter" if plan.drafter_token else ""
    yield f"<tr><td>cache</td><td>{tokens}</td></tr></table>"
