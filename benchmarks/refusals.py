"""Peak memory and time of refusing checkpoints that were made to do harm: refusals.py WORK_DIR

The checkpoints are those of tests/hostile.py, made in WORK_DIR one after another (1 GB at most, mostly holes). Prints a
table in Markdown; exits with 1 where one took more than it may.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.hostile import FLOODS, MEMORY, SECONDS, TARGET, commands, made, run


def main() -> int:
    """Measure and print."""
    work, worse = Path(sys.argv[1]).resolve(), 0
    work.mkdir(parents=True, exist_ok=True)
    print("| checkpoint | command | exit status | peak resident | seconds of the processor |")
    print("|---|---|---|---|---|")
    for name, (harm, _) in FLOODS.items():
        checkpoint = made(TARGET, work / "checkpoint", harm)
        requests = commands(checkpoint, work / "out")
        for request, found in zip(requests, run(requests, work / "log"), strict=True):
            worse |= found.peak > MEMORY or found.seconds > SECONDS
            row = f"{found.status} | {found.peak / 1e9:.2f} GB | {found.seconds:.2f}"
            print(f"| {name} | {request[0]} | {row} |", flush=True)
        shutil.rmtree(checkpoint)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
