"""Peak memory of an export of a large model. The 4B model itself is measured by benchmarks/memory.py.

Four layers of the 4B shape are 2.2 GB, 1.3 of them in one table; more layers add nothing to what is held at a time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
LIMIT = 600e6


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
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert (output / "model.onnx.data").stat().st_size > 2e9
    shutil.rmtree(output)
    assert usage.ru_maxrss * 1024 < LIMIT
