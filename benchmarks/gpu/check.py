"""Prove and time exports on the GPU of this machine: python -m benchmarks.gpu.check OUT.json

Needs Python 3.11, NVIDIA's driver and 50 GB of disk; all else is installed into a new environment, from the folder
--wheels or from the network. Runs phase by phase, each in a process of its own with a time of its own; one that fails
or takes too long is noted, and the others go on. OUT.json is written anew after each. Exit status: 0 where all phases
ended well and all proofs passed, 1 where not.

What is proved: the bundled pair, and the 4B shape with eight of its layers. What is timed: the 4B shape in its full
depth with a DFlash 2 drafter of the published widths, ours and the one of onnxruntime-genai's builder, with CUDA graphs
and without. The weights of the 4B shape are random: times depend on shapes alone, but no draft is accepted, so that a
round is timed, not tokens with drafts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.phases import Phase, finished, run_phase
from benchmarks.gpu.plan import LIMIT_S, Sizes, plan

Json = dict[str, Any]


def check(out: Path, work: Path, python: Path | None, wheels: Path | None, sizes: Sizes, patience: float = 1.0) -> Json:
    """Run all phases, each with ``patience`` times its time; gives what was written."""
    started = time.monotonic()
    results: Json = {}
    report: Json = {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "sizes": sizes.name}
    report |= {"phases": [], "results": results}
    for phase in plan(work, python, wheels, sizes):
        left = patience * LIMIT_S - (time.monotonic() - started)
        phase = replace(phase, seconds=patience * phase.seconds)
        done = run_phase(phase, left, {entry["name"] for entry in report["phases"] if entry["status"] == "ok"})
        report["phases"].append(done.entry)
        if done.result is not None:
            results[phase.name] = done.result
        report["seconds"] = round(time.monotonic() - started, 1)
        report["passed"] = finished(report)
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(_line(phase, done.entry), flush=True)
    return report


def _line(phase: Phase, entry: Json) -> str:
    why = f": {entry['error'].splitlines()[-1][:160]}" if entry.get("error") else ""
    return f"{entry['status']:<9} {phase.name} ({entry['seconds']:.0f} s of {phase.seconds:.0f} s){why}"


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json", help="where the numbers go")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install from this folder, without a network")
    parser.add_argument(
        "--python", type=Path, metavar="PATH", help="an environment's interpreter; nothing is installed"
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="a folder for 50 GB, which stays (default: one beside OUT.json, which does not)",
    )
    parser.add_argument("--patience", type=float, default=1.0, metavar="N", help="N times the time, for a slow machine")
    parser.add_argument("--quick", action="store_true", help="the tiny checkpoint in place of the 4B shape, few steps")
    arguments = parser.parse_args()
    sizes = Sizes.quick() if arguments.quick else Sizes.full()
    with tempfile.TemporaryDirectory(prefix="draftsmith-gpu-", dir=arguments.out.resolve().parent) as own:
        work = arguments.work or Path(own)
        work.mkdir(parents=True, exist_ok=True)
        places = (arguments.out, work.resolve(), arguments.python, arguments.wheels)
        report = check(*places, sizes, arguments.patience)
    print(f"{arguments.out}: {report['seconds']:.0f} s, {'passed' if report['passed'] else 'NOT passed'}")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
