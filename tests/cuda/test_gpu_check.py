"""scripts/gpu_check.sh: its phases on the stand-in device with tiny checkpoints, and what becomes of one that fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.check import check
from benchmarks.gpu.phases import Phase, run_phase
from benchmarks.gpu.plan import LIMIT_S, Sizes, plan
from tests.cuda.environment import environment
from tests.cuda.tools import run_tool

EIGHT_MINUTES = 480

# What is compared with numbers from the device. All else is there to be compared, and passes.
NUMBERS = {"logits", "tap 2", "tap 4", "tap 6", "Engine and transformers"}
NUMBERS |= {f"drafter {part}" for part in ("candidates", "scores", "head", "convolution")}
SLOW = 1800  # seconds; one and a half minutes on a machine that has nothing else to do


@pytest.mark.nightly
def test_the_flow(tmp_path: Path) -> None:
    """All phases run. The proofs alone fail, for the device computes nothing."""
    out = tmp_path / "out.json"
    command = ("-m", "benchmarks.gpu.check", out, "--quick", "--patience", 20, "--python", environment().python)
    done = run_tool(*command, timeout=SLOW)
    report = json.loads(out.read_text())
    ended = {entry["name"]: entry["status"] for entry in report["phases"]}
    proofs = {"prove the pair", "prove the shape"}
    assert ended == {name: "failed" if name in proofs else "ok" for name in ended}, (done.stdout, report["phases"])
    assert done.returncode == 1 and report["passed"] is False
    results = report["results"]
    assert results["machine"]["gpus"] == ["stand-in H100, compute capability 9.0, 8.6 GB"]
    for name in proofs:
        found = {check["name"]: check["verdict"] for check in results[name]["checks"]}
        assert {check for check, verdict in found.items() if verdict != "passed"} == NUMBERS, found
    for builder in ("ours", "theirs"):
        for graphs in ("on", "off"):
            times = results[f"Engine, {builder}, CUDA graphs {graphs}"]
            assert times["plain step"]["count"] == times["round"]["count"] == Sizes.quick().steps
            assert times["round"]["drafts_per_proposal"] == 7 and times["plain step"]["tokens_per_s"] > 0
            parts = results[f"parts, {builder}, CUDA graphs {graphs}"]
            assert all(parts[name]["median_ms"] > 0 for name in ("decoding", "verification", "drafting"))


def test_the_time_of_all_phases() -> None:
    phases = list(plan(Path("work"), None, None, Sizes.full()))
    assert sum(phase.seconds for phase in phases) <= LIMIT_S < EIGHT_MINUTES
    names = [phase.name for phase in phases]
    assert len(set(names)) == len(names)
    assert all(set(phase.after) <= set(names[:place]) for place, phase in enumerate(phases))


def phase(code: str, seconds: int = 60, after: tuple[str, ...] = ()) -> Phase:
    return Phase("phase", (sys.executable, "-c", code), seconds, after)


def test_a_phase_that_fails_and_one_that_hangs() -> None:
    failed = run_phase(phase("import sys; print('{\"a\": 1}'); sys.exit('why')"), 60, ())
    assert (failed.entry["status"], failed.entry["error"], failed.result) == ("failed", "why", {"a": 1})
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    hung = run_phase(phase(child, 1), 60, ())
    assert hung.entry["status"] == "timed out" and hung.entry["seconds"] < 30
    assert run_phase(phase("", after=("other",)), 60, ()).entry["error"] == "not begun without: other"
    assert run_phase(phase(""), 0.5, ()).entry["status"] == "skipped"
    assert run_phase(Phase("none", ("/no/such/program",), 5), 60, ()).entry["status"] == "failed"


def test_without_an_environment_the_report_says_why(tmp_path: Path) -> None:
    """An empty folder of wheels: nothing can be installed, and everything after it is not begun."""
    (tmp_path / "wheels").mkdir()
    report = check(tmp_path / "out.json", tmp_path, None, tmp_path / "wheels", Sizes.quick())
    install, *others = json.loads((tmp_path / "out.json").read_text())["phases"]
    assert install["status"] == "failed" and "No matching distribution" in install["error"]
    assert {entry["status"] for entry in others} == {"skipped"} and not report["passed"]
