"""Peak memory and time of exporting the 4B shape in every precision: memory.py WORK_DIR

Makes the synthetic checkpoint (8.4 GB) in WORK_DIR if it is not there, and needs 17 GB beside it for the exports, which
are deleted. Where onnxruntime-genai is installed, with torch and transformers, its own builder is measured too, which
takes 11 GB of memory. Prints a table in Markdown.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
OURS, THEIRS = "builder", "onnxruntime_genai.models.builder"
PACKED = ("--extra_options", "use_paged_attention=true")
RUNS: list[tuple[str, str, str, tuple[str, ...]]] = [
    (OURS, "bf16", "cuda", PACKED),
    (OURS, "fp16", "cuda", PACKED),
    (OURS, "bf16", "cuda", ()),
    (OURS, "fp16", "cuda", ()),
    (OURS, "fp32", "cpu", ()),
    (THEIRS, "bf16", "cuda", (*PACKED, "exclude_mtp=true")),
]


def measure(module: str, checkpoint: Path, output: Path, arguments: list[str]) -> tuple[int, float]:
    """Peak resident bytes of one export, and its seconds."""
    command = [sys.executable, "-m", module, "-i", str(checkpoint), "-o", str(output), *arguments]
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_maxrss * 1024, time.monotonic() - start


def main() -> None:
    """Measure and print."""
    work = Path(sys.argv[1]).resolve()
    checkpoint, output = work / "synthetic-4b", work / "synthetic-4b-export"
    if not (checkpoint / "config.json").exists():
        subprocess.run([sys.executable, "-m", "scripts.make_synthetic_checkpoint", checkpoint], check=True, cwd=ROOT)
    print("| exporter | layout | precision | provider | written | peak resident | seconds |")
    print("|---|---|---|---|---|---|---|")
    for module, precision, provider, more in RUNS:
        if module == THEIRS and importlib.util.find_spec("onnxruntime_genai") is None:
            continue
        peak, seconds = measure(module, checkpoint, output, ["-p", precision, "-e", provider, *more])
        written = sum(path.stat().st_size for path in output.iterdir())
        name = "draftsmith" if module == OURS else "onnxruntime-genai"
        kind = f"{name} | {'packed' if more else 'dense'} | {precision} | {provider}"
        print(f"| {kind} | {written / 1e9:.1f} GB | {peak / 1e9:.2f} GB | {seconds:.0f} |", flush=True)
        shutil.rmtree(output)


if __name__ == "__main__":
    main()
