"""Peak memory of an export of a large model. The 4B model itself is measured by benchmarks/memory.py.

Four layers of the 4B shape are 2.2 GB, 1.3 of them in one table; more layers add nothing to what is held at a time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
LIMIT = 600e6

# Runs a command and prints its peak resident kilobytes. A process starts with its parent's peak, so that pytest's own,
# with torch in it, must not be the parent.
LAUNCHER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("large")
    script = REPOSITORY / "scripts" / "make_synthetic_checkpoint.py"
    subprocess.run([sys.executable, script, folder, "--layers", "4"], check=True, stdout=subprocess.DEVNULL)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(("precision", "provider"), [("bf16", "cuda"), ("fp16", "cuda"), ("fp32", "cpu")])
def test_peak_memory(tmp_path: Path, large: Path, precision: str, provider: str) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-m", "builder", "-i", str(large), "-o", str(output), "-p", precision, "-e", provider]
    launched = [sys.executable, "-c", LAUNCHER, *command]
    peak = int(subprocess.run(launched, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout)
    assert (output / "model.onnx.data").stat().st_size > 2e9
    shutil.rmtree(output)
    assert 50e6 < peak * 1024 < LIMIT
