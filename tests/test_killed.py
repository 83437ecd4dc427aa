"""An export killed at ten different moments, over an earlier one: what stands there is always complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import TINY
from tests.nightly import sampled
from tests.runtime import export

REPOSITORY = Path(__file__).parent.parent
MOMENTS = 10

# Runs an export that kills itself, as kill -9 would, at the n-th file that it opens, makes, moves or removes once the
# checks are done and the work folder is made; the last line tells how many there were if it lived.
KILLED = """
import os, signal, sys
from builder.cli import main
limit, folder, count = int(sys.argv[1]), sys.argv[2], 0
def hook(event, args):
    global count
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "ctypes.dlsym") and (
        count or event == "os.mkdir" and ".draftsmith" in str(args[0])
    ):
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
status = main(["-i", sys.argv[3], "-o", folder, "-p", "fp32", "-e", "cpu"])
print(count)
sys.exit(status)
"""


def run(limit: int, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, str(limit), str(folder), str(TINY)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many steps a whole run has."""
    return int(run(0, tmp_path_factory.mktemp("whole") / "out").stdout.splitlines()[-1])


@pytest.mark.parametrize("moment", sampled(range(MOMENTS), every=3))
def test_killed_then_repeated(tmp_path: Path, tiny_export: Path, steps: int, moment: int) -> None:
    assert steps > 2 * MOMENTS
    old, new = contents(export(TINY, tmp_path / "out", "prune_lm_head=false")), contents(tiny_export)
    assert old != new
    limit = 1 + moment * (steps - 1) // (MOMENTS - 1)  # the first step, the last, and eight between
    assert run(limit, tmp_path / "out").returncode == -9
    assert contents(tmp_path / "out") in (old, new)
    assert run(0, tmp_path / "out").returncode == 0
    assert contents(tmp_path / "out") == new
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
