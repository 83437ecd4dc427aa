"""What a tap that is off by one layer costs, and that verify sees it: python -m scripts.tap_offsets OUT_DIR

Moves the taps of the bundled pair's exports by one layer up and down, one at a time and all together, by editing the
graph. For each it decodes the bundled prompts in the real Engine and runs verify's tap check. Writes a table in
Markdown (OUT_DIR/tap-offsets.md) and a figure (OUT_DIR/tap-offsets.svg).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftsmith.speculate import read_prompts, speculate
from draftsmith.validation.reference import operator_epsilon
from draftsmith.validation.widen import widen
from draftsmith.verify.checks import Results
from draftsmith.verify.folder import open_export
from draftsmith.verify.running import Running
from draftsmith.verify.target import check_target
from scripts import pictures
from tests.faults.graphs import edited, move_all_taps, move_tap
from tests.faults.trying import PAIR, Pair, make_pair

TOKENS = 96


@dataclass(frozen=True)
class Row:
    """One export: which tap was moved, what the drafts were worth, what the tap check said."""

    kind: str
    moved: str
    mean: float
    error: float
    failed: int


def variants(taps: int) -> dict[str, Callable[[Path], None] | None]:
    """How the taps are moved."""
    found: dict[str, Callable[[Path], None] | None] = {"as trained": None}
    for by, word in ((-1, "early"), (1, "late")):
        for place in range(taps):
            found[f"tap {place + 1} {word}"] = edited("model", move_tap(place, by))
        found[f"all {word}"] = edited("model", move_all_taps(by))
    return found


def measure(pair: Pair, moved: str, change: Callable[[Path], None] | None, prompts: list[str]) -> Row:
    """Decode and check one variant."""
    with tempfile.TemporaryDirectory(prefix="draftsmith-taps-") as work:
        folder = shutil.copytree(pair.export, Path(work) / "export")
        if change is not None:
            change(folder)
        mean = speculate(folder, prompts, TOKENS, baseline=False).acceptance.mean
        results = Results(lambda check: None)
        widen(folder, Path(work) / "low")
        with operator_epsilon():
            check_target(
                open_export(folder),
                Running(Path(work) / "low", Path(work)),
                pair.target,
                pair.drafter.config.taps,
                results,
            )
    checks = [check for check in results.checks if check.name.startswith("tap")]
    failed = sum(check in results.failed for check in checks)
    return Row(pair.kind, moved, mean, max(check.error or 0.0 for check in checks), failed)


def main() -> None:
    """Measure both kinds of drafters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="the folder of the table and the figure")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    prompts = read_prompts(PAIR / "prompts.txt")
    rows = []
    with tempfile.TemporaryDirectory(prefix="draftsmith-taps-") as work:
        for kind in ("dflash2", "dspark"):
            pair = make_pair(Path(work), kind)
            for moved, change in variants(len(pair.drafter.config.taps)).items():
                rows.append(measure(pair, moved, change, prompts))
                print(rows[-1], flush=True)
    lines = [
        "| drafter | taps | mean accepted length | largest tap error | tap checks that fail |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r.kind} | {r.moved} | {r.mean:.2f} | {r.error:.1e} | {r.failed} |" for r in rows]
    (out / "tap-offsets.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "tap-offsets.svg").write_text(pictures.standalone(rows_picture(rows)), encoding="utf-8")


def rows_picture(rows: list[Row]) -> str:
    """Lying bars of accepted lengths."""
    labels = [f"{row.kind}, {row.moved}" for row in rows]
    return pictures.lying_bars([row.mean for row in rows], labels, "Mean accepted length by where the taps read")


if __name__ == "__main__":
    main()
