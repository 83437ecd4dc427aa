"""Apply every known fault to good exports and count what verify catches: python -m scripts.verify_faults

Exports the bundled pair (DFlash 2, the same with a window of 40, DSpark), checks that verify passes on each, then does
one fault at a time to a copy. Exit status 1 where one is not caught. With ``--every N`` only each N-th fault is done.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.listing import FAULTS
from tests.faults.trying import caught_by, make_pair, try_fault
from tests.faults.unseen import UNSEEN


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
            assert not (fault := caught_by(pair, pair.export)), f"{kind}: {fault} fails on the good export"
            for fault_ in [fault for fault in (*FAULTS, *UNSEEN) if kind in fault.kinds][:: arguments.every]:
                catch = try_fault(pair, fault_, run=fault_ not in UNSEEN)
                done, missed = done + 1, missed + (not catch)
                row = (kind, fault_.name, catch.written or "-", catch.otherwise or ("-" if catch else "NOT CAUGHT"))
                lines.append(f"| {' | '.join(row)} |")
                print(f"{row[2]:<24} {row[3]:<24} {kind}: {fault_.name}", flush=True)
    counted = f"{done - missed} of {done} caught"
    if arguments.table:
        title = "# Faults, and what verify catches them by\n\nMade by `python -m scripts.verify_faults --table FILE`"
        title += " (what the checks are: [proofs](verify.md))"
        head = [f"{title}: {counted}.", "", _ABOUT, ""]
        head += ["| export | fault | compared with what would be written | other checks |", "|---|---|---|---|"]
        arguments.table.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    print(f"{counted}, {time.monotonic() - start:.0f} s")
    return 1 if missed else 0


_ABOUT = """The third column is the first check that fails among those that compare the files with what would be
written; the fourth is the first of all others, which know nothing of that: they would notice an exporter that is wrong
in the same way twice. A dash means that none does; of the faults from "NaN" on, the graphs were not run, since no short
run shows them."""


if __name__ == "__main__":
    sys.exit(main())
