"""The report as a page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from draftsmith.acceptance import Acceptance
from draftsmith.report import pictures
from draftsmith.report.memory import plan_of, weights_of
from draftsmith.verify.checks import SENTENCES, Results, Verdict
from draftsmith.verify.folder import ExportFolder
from draftsmith.verify.machine import unwritable
from onnxkit import __version__
from onnxkit.sizes import readable
from onnxkit.text import escaped

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --paper: #ffffff; --rule: #d5dae3; --soft: #eef1f6;
  --good: #18794e; --bad: #b42318; --warn: #9a6700; --mute: #667085;
  --blue: #3b6fb6; --sand: #d8a657; --leaf: #6a9f58; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --paper: #171a21; --rule: #3a4150; --soft: #232833;
  --good: #58c08c; --bad: #f08a80; --warn: #e0b252; --mute: #9aa3b2; --blue: #7fa7dd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0 .75rem; } .mute { color: var(--mute); }
.verdict { font-weight: 600; } .passed { color: var(--good); } .failed { color: var(--bad); }
.incomplete { color: var(--warn); }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: .35rem .5rem;
  border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; } th { font-weight: 600; }
th, td.verdict { white-space: nowrap; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem 2rem; }
svg { width: 100%; height: auto; max-width: 40rem; display: block; } .wide { overflow-x: auto; }
svg .text { font: 11px system-ui, sans-serif; fill: var(--ink); } svg .line { stroke: var(--rule); }
svg .layer, svg .away { fill: var(--soft); } svg .here { fill: var(--leaf); } svg .wrong { fill: #e5867c; }
svg .bar, svg .target { fill: var(--blue); } svg .shared { fill: var(--sand); } svg .drafter { fill: var(--leaf); }
@media (max-width: 40rem) { .checks thead { display: none; }
  .checks tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--rule); }
  .checks td { display: block; border: 0; padding: .1rem 0; } .checks td:nth-child(-n+2) { display: inline; } }
"""


def page(export: ExportFolder, results: Results) -> str:
    """The whole file."""
    name = export.path.resolve().name
    body = "\n".join(
        [
            *_summary(export, results),
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
    return escaped(whole, keep="\n")  # names in it come from files of strangers


def write_report(path: Path, export: ExportFolder, results: Results) -> None:
    """Write the page.

    Raises:
        ExportError: It cannot be written.
    """
    try:
        path.write_text(page(export, results), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from error


def _summary(export: ExportFolder, results: Results) -> Iterator[str]:
    model, drafter = export.config["model"], export.drafter
    verdict = results.verdict
    yield f"<h1>{escape(export.path.resolve().name)}</h1>"
    yield (
        f'<p><span class="verdict {_kind(verdict)}">{SENTENCES[verdict]}</span>: {escape(results.summary())}. '
        f'<span class="mute">draftsmith {__version__}</span></p>'
    )
    layout = "packed, for the Engine" if export.packed else "dense, for the Generator"
    facts = [
        ("layout", layout),
        (
            "target",
            f"{export.decoder.section.get('num_hidden_layers')} layers, vocabulary of {model.get('vocab_size')}",
        ),
        ("context", f"{model.get('context_length')} tokens"),
    ]
    if drafter:
        drafts, rows = (drafter.section.get(key) for key in ("num_draft_tokens", "block_size"))
        facts.append(("drafter", f"{drafter.role}, {drafts} drafts from blocks of {rows} rows"))
    yield "<table>" + "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts) + "</table>"


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
    """A verdict as a word of the page, and its class."""
    return verdict.value.lower()


def _ranges(results: Results) -> Iterator[str]:
    for name, title in (("ranges", "target"), ("drafter ranges", "drafter")):
        rows: list[tuple[str, float]] = results.figures.get(name, [])
        if rows:
            yield f"<h2>Largest values of the {title}</h2><p>Of each layer, on the tokens that were run.</p>"
            yield pictures.lying_bars([value for _, value in rows], [place for place, _ in rows], f"Ranges, {title}")


def _taps(results: Results) -> Iterator[str]:
    figures: list[dict[str, Any]] = results.figures.get("taps", [])
    if figures and figures[0]["distances"]:
        yield "<h2>Where the taps read</h2>"
        yield "<p>Each tap's largest distance to the output of each layer; it should be nearest to its own.</p>"
        yield f'<div class="wide">{pictures.taps(figures)}</div>'


def _acceptance(results: Results) -> Iterator[str]:
    engine = results.figures.get("engine")
    if not engine or not sum(engine["histogram"]):
        return
    found = Acceptance(tuple(engine["histogram"]))
    yield "<h2>Drafts</h2>"
    yield (
        f"<p>{engine['proposed']} proposed, {found.accepted} accepted in {found.rounds} rounds: {found.mean:.2f} a "
        'round. <span class="mute">Short runs, some of random tokens; speculate takes prompts of your own.</span></p>'
    )
    lengths = [str(i) for i in range(len(found.histogram))]
    shares = found.by_position()
    yield '<div class="figures">'
    yield "<figure>" + pictures.bars(
        found.histogram, lengths, [str(n) for n in found.histogram], "Accepted length, rounds"
    )
    yield "<figcaption>Rounds by accepted length</figcaption></figure>"
    yield "<figure>" + pictures.bars(shares, lengths[1:], [f"{s:.0%}" for s in shares], "Acceptance by position")
    yield "<figcaption>Share of rounds that accepted each position</figcaption></figure></div>"


def _sizes(export: ExportFolder) -> Iterator[str]:
    weights, plan = weights_of(export), plan_of(export)
    parts = [("target", weights.target, "target")]
    if export.drafter:
        parts += [("shared by both", weights.shared, "shared"), ("drafter", weights.drafter, "drafter")]
    texts = [f"{name}: {readable(size)}" for name, size, _ in parts]
    yield "<h2>Weights</h2>"
    yield pictures.stack(parts, texts, "Whose the weights are")
    yield "<h2>Memory while it runs</h2><table>"
    for name, size in plan.rows():
        yield f'<tr><td>{escape(name)}</td><td class="number">{readable(size)}</td></tr>'
    tokens = f"{plan.target_token} B a token"
    tokens += f", and {plan.drafter_token} B for the drafter" if plan.drafter_token else ""
    yield f"<tr><td>cache</td><td>{tokens}</td></tr></table>"
