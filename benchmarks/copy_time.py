"""Time of an export against a plain copy of the same bytes: copy_time.py WORK_DIR

The 4B shape in bf16, packed layout; both from a warm cache with a final sync, in turns, the median of five each. Makes
the synthetic checkpoint in WORK_DIR if it is not there (benchmarks/memory.py makes the same), and needs 9 GB beside it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNS = 5


def timed(command: list[object]) -> float:
    """Seconds of a command and of writing back what it left in the cache."""
    start = time.monotonic()
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, capture_output=True)
    os.sync()
    return time.monotonic() - start


def main() -> None:
    """Measure and print."""
    work = Path(sys.argv[1]).resolve()
    checkpoint, output = work / "synthetic-4b", work / "copy-time"
    if not (checkpoint / "config.json").exists():
        subprocess.run([sys.executable, "-m", "scripts.make_synthetic_checkpoint", checkpoint], check=True, cwd=ROOT)
    for path in checkpoint.iterdir():  # into the cache
        subprocess.run(["cat", path], check=True, stdout=subprocess.DEVNULL)
    copy: list[object] = ["cp", "-r", "--reflink=never", checkpoint, output]
    export: list[object] = [sys.executable, "-m", "builder", "-i", checkpoint, "-o", output, "-p", "bf16", "-e", "cuda"]
    export += ["--extra_options", "use_paged_attention=true"]
    seconds: dict[str, list[float]] = {"copy": [], "export": []}
    for _ in range(RUNS):
        for name, command in (("copy", copy), ("export", export)):
            os.sync()
            seconds[name].append(timed(command))
            shutil.rmtree(output)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name}: median {medians[name]:.1f} s of {', '.join(f'{value:.1f}' for value in values)}")
    print(f"ratio {medians['export'] / medians['copy']:.2f}")


if __name__ == "__main__":
    main()
