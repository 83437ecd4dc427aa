"""What the machine is and what is installed, as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from draftsmith.cuda_runtime import check_cuda, dotted
from onnxkit import __version__

PACKAGES = ("onnxruntime-gpu", "onnxruntime-genai-cuda", "torch", "transformers", "onnx-ir", "onnxscript")
FIELDS = "name,driver_version,clocks.max.sm,clocks.max.memory,power.limit,memory.total"


def main() -> None:
    """Print it.

    Raises:
        ExportError: No export can run here.
    """
    driver = check_cuda().driver
    found = {"draftsmith": __version__}
    for package in PACKAGES:
        found[package] = importlib.metadata.version(package)
    memory = re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())
    result = {
        "packages": found,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "memory_gb": round(int(memory[1]) * 1024 / 1e9) if memory else None,
        "cuda_of_driver": dotted(driver.cuda),
        "gpus": [str(gpu) for gpu in driver.gpus],
        "nvidia_smi": _nvidia_smi(),
    }
    print(json.dumps(result))


def _nvidia_smi() -> dict[str, str] | None:
    """What the driver's own tool says of the first GPU, where it is there."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    values = done.stdout.splitlines()[0].split(", ") if done.returncode == 0 and done.stdout else []
    return dict(zip(FIELDS.split(","), values, strict=False)) or None


if __name__ == "__main__":
    main()
