"""Peak memory and time of exporting the 4B shape in every precision: memory.py WORK_DIR

Makes the synthetic checkpoint (8.4 GB) in WORK_DIR if it is not there, and needs 17 GB beside it for the exports, which
are deleted. Prints a table in Markdown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKED = ("--extra_options", "use_paged_attention=true")
RUNS: list[tuple[str, str, tuple[str, ...]]] = [
    ("bf16", "cuda", PACKED),
    ("fp16", "cuda", PACKED),
    ("bf16", "cuda", ()),
    ("fp16", "cuda", ()),
    ("fp32", "cuda", ()),
    ("fp32", "cpu", ()),
]


def measure(checkpoint: Path, output: Path, precision: str, provider: str, more: tuple[str, ...]) -> tuple[int, float]:
    """Peak resident bytes of one export, and its seconds."""
    command = [sys.executable, "-m", "builder", "-i", checkpoint, "-o", output, "-p", precision, "-e", provider, *more]
    start = time.monotonic()
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit("the export failed")
    return usage.ru_maxrss * 1024, time.monotonic() - start


def main() -> None:
    """Measure and print."""
    work = Path(sys.argv[1]).resolve()
    checkpoint, output = work / "synthetic-4b", work / "synthetic-4b-export"
    if not (checkpoint / "config.json").exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "make_synthetic_checkpoint.py", checkpoint], check=True)
    print("| layout | precision | provider | written | peak resident | seconds |\n|---|---|---|---|---|---|")
    for precision, provider, more in RUNS:
        peak, seconds = measure(checkpoint, output, precision, provider, more)
        layout = "packed" if more else "dense"
        written = sum(path.stat().st_size for path in output.iterdir())
        size = f"{written / 1e9:.1f} GB | {peak / 1e9:.2f} GB"
        print(f"| {layout} | {precision} | {provider} | {size} | {seconds:.0f} |", flush=True)
        shutil.rmtree(output)


if __name__ == "__main__":
    main()
