"""draftsmith verify --provider cuda on the stand-in device, which computes nothing: all of it runs, and it fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cuda.tools import run_tool
from tests.faults.trying import PAIR
from tests.runtime import export

VERIFY = ("-m", "draftsmith.cli", "verify")
DSPARK = PAIR / "dspark"  # test_gpu_check.py has DFlash 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed export of the bundled pair with its DSpark drafter, as in the Hub's cache: all files are links."""
    work = tmp_path_factory.mktemp("verify")
    options = (f"drafter_path={DSPARK}", "context_length=1024")
    folder = export(PAIR / "target", work / "out", *options, precision="bf16", provider="cuda")
    blobs, snapshot = work / "hub" / "blobs", work / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        (snapshot / path.name).symlink_to(path.rename(blobs / f"{number:064x}"))
    return snapshot


def verdicts(folder: Path, *arguments: object) -> dict[str, str]:
    """What verify says of each check, by name. The export fails, and no check is stopped by an error."""
    done = run_tool(*VERIFY, folder, "--target", PAIR / "target", *arguments, "--provider", "cuda")
    assert done.returncode == 1, done.stderr
    assert "stopped:" not in done.stdout, done.stdout
    return {name: verdict for verdict, name in re.findall(r"^(\w+) +([^:\n]+): ", done.stdout, re.MULTILINE)}


def test_all_checks_run_and_it_fails(made: Path) -> None:
    """Every number is compared, and found to be wrong: what comes back are zeros."""
    found = verdicts(made, "--drafter", DSPARK)
    wrong = {"logits", "tap 2", "tap 4", "tap 6", "Engine and transformers"}
    wrong |= {f"drafter {part}" for part in ("candidates", "scores", "head")}
    assert {name for name, verdict in found.items() if verdict == "FAILED"} == wrong
    assert {"files", "sharing", "drafts", "Engine with drafts"} <= found.keys()


@pytest.mark.nightly
def test_a_dense_export(tmp_path: Path) -> None:
    """In the Generator, with the arithmetic on shapes on the CPU."""
    folder = export(PAIR / "target", tmp_path / "out", "context_length=1024", precision="fp16", provider="cuda")
    found = verdicts(folder)
    assert {name for name, verdict in found.items() if verdict == "FAILED"} == {
        "logits",
        "Generator and transformers",
    }


def test_without_a_gpu(made: Path) -> None:
    done = run_tool(*VERIFY, made, "--provider", "cuda", cuda=False)
    assert done.returncode == 2 and re.match(r"error: \d of CUDA's 5 libraries cannot be loaded", done.stderr)
