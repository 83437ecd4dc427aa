"""draftsmith verify --provider cuda on the stand-in device, which computes nothing: all of it runs, and it fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.verify_faults import PAIR
from tests.cuda.tools import run_tool
from tests.runtime import export

VERIFY = ("-m", "draftsmith.cli", "verify")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A packed export of the bundled pair with its DSpark drafter, and that. (test_gpu_check.py has DFlash 2.)"""
    drafter = PAIR / "dspark"
    folder = tmp_path_factory.mktemp("verify") / "out"
    options = (f"drafter_path={drafter}", "context_length=1024")
    return export(PAIR / "target", folder, *options, precision="bf16", provider="cuda"), drafter


def test_all_checks_run_and_it_fails(made: tuple[Path, Path]) -> None:
    """Every number is compared, and found to be wrong: what comes back are zeros."""
    folder, drafter = made
    done = run_tool(*VERIFY, folder, "--target", PAIR / "target", "--drafter", drafter, "--provider", "cuda")
    assert done.returncode == 1, done.stderr
    found = {name: verdict for verdict, name in re.findall(r"^(\w+) +([^:\n]+): ", done.stdout, re.MULTILINE)}
    assert "stopped:" not in done.stdout
    for name in (
        "logits",
        "tap 2",
        "tap 4",
        "tap 6",
        "drafter candidates",
        "drafter scores",
        "Engine and transformers",
    ):
        assert found[name] == "FAILED", done.stdout
    assert found["files"] == found["sharing"] == found["drafts"] == "passed", done.stdout
    assert {"drafter head", "Engine with drafts"} <= found.keys()


def test_without_a_gpu(made: tuple[Path, Path]) -> None:
    done = run_tool(*VERIFY, made[0], "--provider", "cuda", cuda=False)
    assert done.returncode == 2 and re.match(r"error: \d of CUDA's 5 libraries cannot be loaded", done.stderr)
