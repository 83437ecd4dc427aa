"""Apply every known fault to good exports and count what verify catches: python -m scripts.verify_faults

Exports the bundled pair (DFlash 2, the same with a window of 40, DSpark), checks that verify passes on each, then does
one fault at a time to a copy. Exit status 1 where one is not caught. With ``--every N`` only each N-th fault is done.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from builder.cli import main as build
from draftsmith.verify.checks import Check, Results, Verdict
from draftsmith.verify.folder import open_export
from draftsmith.verify.run import prove
from draftsmith.verify.sources import DrafterSource, Target, open_drafter, open_target
from onnxkit.errors import ExportError
from scripts.faults import Fault
from scripts.faults.listing import FAULTS

PAIR = Path(__file__).parent.parent / "tests" / "assets" / "pair"


class Caught(BaseException):
    """A check has failed: the rest need not run. (No Exception, which a check would take for its own.)"""


@dataclass
class Pair:
    """A good export and what it was made from."""

    kind: str
    export: Path
    target: Target
    drafter: DrafterSource


def make_pair(work: Path, kind: str, assets: Path = PAIR, target: Target | None = None) -> Pair:
    """Export the bundled pair; ``windowed`` is the DFlash 2 drafter told that it slides."""
    source = assets / ("dspark" if kind == "dspark" else "dflash2")
    if kind == "windowed":
        source = shutil.copytree(source, work / "windowed-drafter")
        config = json.loads((source / "config.json").read_text())
        layers = ["sliding_attention"] * config["num_hidden_layers"]
        config |= {"layer_types": layers, "sliding_window": 40, "use_sliding_window": True}
        (source / "config.json").write_text(json.dumps(config))
    export = work / kind
    options = ["--extra_options", f"drafter_path={source}", "context_length=1024"]
    assert build(["-i", str(assets / "target"), "-o", str(export), "-p", "bf16", "-e", "cuda", *options]) == 0
    opened = open_export(export)
    assert opened.drafter is not None
    target = target or open_target(assets / "target", opened)
    return Pair(kind, export, target, open_drafter(source, opened.drafter, target))


def caught_by(pair: Pair, folder: Path) -> str | None:
    """The first check that fails on an export, or what stops it; None where all pass."""

    def tell(check: Check) -> None:
        if check.verdict is Verdict.FAILED:
            raise Caught(check.name)

    try:
        prove(open_export(folder), pair.target, pair.drafter, Results(tell))
    except Caught as caught:
        return str(caught)
    except ExportError as error:
        return f"refused: {error.problem}"
    return None


def try_fault(pair: Pair, fault: Fault) -> str | None:
    """Do a fault to a copy of a good export; gives what catches it."""
    with tempfile.TemporaryDirectory(prefix="draftsmith-fault-") as work:
        folder = shutil.copytree(pair.export, Path(work) / "export")
        fault.apply(folder)
        return caught_by(pair, folder)


def main() -> int:
    """Run all, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="do each N-th fault only")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table in Markdown")
    arguments = parser.parse_args()
    lines, missed, done, start = [], 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="draftsmith-faults-") as work:
        target = None
        for kind in ("dflash2", "windowed", "dspark"):
            pair = make_pair(Path(work), kind, target=target)
            target = pair.target
            assert (fault := caught_by(pair, pair.export)) is None, f"{kind}: {fault} fails on the good export"
            for fault_ in [fault for fault in FAULTS if kind in fault.kinds][:: arguments.every]:
                check = try_fault(pair, fault_)
                done, missed = done + 1, missed + (check is None)
                lines.append(f"| {kind} | {fault_.name} | {check or 'NOT CAUGHT'} |")
                print(f"{check or 'NOT CAUGHT':<30} {kind}: {fault_.name}", flush=True)
    counted = f"{done - missed} of {done} caught"
    if arguments.table:
        title = "# Faults, and what verify catches them by\n\nMade by `python -m scripts.verify_faults --table FILE`"
        head = [f"{title}: {counted}.", "", "| export | fault | caught by |", "|---|---|---|"]
        arguments.table.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    print(f"{counted}, {time.monotonic() - start:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
