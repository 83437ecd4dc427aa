"""How long all checks of a 64-layer target take, headers only: python -m benchmarks.checks_time WORK_DIR

Writes headers of a real model's shape (the weights are a hole in the file), then times draftsmith inspect on it: the
start of the process, config, names, tensors, the whole tensor plan. The limit is 3 seconds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.synthetic import write_headers

RUNS, LIMIT = 5, 3.0


def main() -> None:
    """Write, inspect, print."""
    target = write_headers(Path(sys.argv[1]) / "target", 64)
    command = [sys.executable, "-m", "draftsmith.cli", "inspect", str(target)]
    seconds = []
    for _ in range(RUNS):
        start = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.monotonic() - start)
    print(f"{sorted(seconds)[RUNS // 2]:.2f} s, the median of {RUNS} (limit {LIMIT:g} s)")


if __name__ == "__main__":
    main()
