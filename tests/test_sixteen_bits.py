"""verify's limits in 16 bits, on the CPU: what rounds as a GPU does passes, faults fail.

A copy that rounds every result to the export's type (tests/rounded.py) stands for a GPU: its errors are those of the
type, and the limits, which are measured by transformers' own run in that type, know nothing of how it was made.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from draftsmith.cli import main
from draftsmith.validation.reference import operator_epsilon
from draftsmith.verify.checks import Check, Results, Verdict
from draftsmith.verify.drafter import check_drafter
from draftsmith.verify.engine import check_runtime
from draftsmith.verify.folder import open_export
from draftsmith.verify.sources import open_drafter, open_target
from draftsmith.verify.target import check_target
from tests.faults.listing import FAULTS
from tests.faults.trying import PAIR, Pair
from tests.nightly import sampled
from tests.rounded import rounded
from tests.runtime import export

# The largest relative error of one rounding.
BFLOAT16, FLOAT16 = 2.0**-8, 2.0**-11


@pytest.fixture
def pair(pairs: dict[str, Pair]) -> Pair:
    """The bundled pair in bf16, with its DFlash 2 drafter."""
    return pairs["dflash2"]


def numbers(pair: Pair, folder: Path, work: Path, engine: bool = False) -> dict[str, Check]:
    """The checks of numbers of a copy that rounds, by name."""
    results, opened = Results(lambda check: None), open_export(folder)
    with operator_epsilon():
        running = rounded(opened, work)
        with results.guarded("logits"):
            check_target(opened, running, pair.target, pair.drafter.config.taps, results)
        with results.guarded("drafter scores"):
            check_drafter(opened, running, pair.target, pair.drafter, results)
        if engine:
            check_runtime(opened, running, pair.target, results)
    return {check.name: check for check in results.checks}


def failed(checks: dict[str, Check]) -> list[str]:
    return [str(check) for check in checks.values() if check.verdict is not Verdict.PASSED]


def test_bfloat16_passes(pair: Pair, tmp_path: Path) -> None:
    checks = numbers(pair, pair.export, tmp_path, engine=True)
    assert not failed(checks)
    assert {"logits", "tap 2", "tap 6", "drafter candidates", "drafter scores", "drafter head"} <= checks.keys()
    assert {"drafts", "Engine with drafts", "Engine and transformers"} <= checks.keys()
    for check in checks.values():
        if check.error is not None and check.limit is not None:
            assert BFLOAT16 / 4 < check.error < check.limit < 0.25, "it rounds, and the limit tells right from wrong"


def test_float16_passes_within_narrower_limits(tmp_path: Path) -> None:
    drafter = PAIR / "dspark"
    options = (f"drafter_path={drafter}", "context_length=1024")
    folder = export(PAIR / "target", tmp_path / "out", *options, precision="fp16", provider="cuda")
    opened = open_export(folder)
    assert opened.drafter is not None
    target = open_target(PAIR / "target", opened)
    made = Pair("dspark", folder, target, open_drafter(drafter, opened.drafter, target))
    checks = numbers(made, folder, tmp_path / "work")
    assert not failed(checks)
    for name in ("logits", "tap 2", "tap 4", "tap 6"):
        error, limit = checks[name].error, checks[name].limit
        assert error is not None and limit is not None and FLOAT16 / 4 < error < limit < 0.04


FAULTS_OF_NUMBERS = (
    "tap 1 before its layer",
    "every tap one layer late",
    "a tap behind the norm",
    "target: rope base 1.5 times",
    "target: a window",
    "target: decays of another layer",
)


@pytest.mark.parametrize("name", sampled(FAULTS_OF_NUMBERS, every=2))
def test_faults_are_beyond_the_limits(pair: Pair, tmp_path: Path, name: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    folder = shutil.copytree(pair.export, tmp_path / "export")
    fault.apply(folder)
    assert failed(numbers(pair, folder, tmp_path / "work"))


def test_an_export_in_float32_is_for_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("draftsmith.cuda_runtime.check_cuda", lambda: None)
    folder = export(PAIR / "target", tmp_path / "out", "context_length=1024")
    assert main(["verify", str(folder), "--provider", "cuda"]) == 2
    assert "accepted: an export in bfloat16 or float16" in capsys.readouterr().err


def test_without_a_gpu_it_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the environment of the CPU, before the folder is looked at."""
    assert main(["verify", str(tmp_path), "--provider", "cuda"]) == 2
    error = capsys.readouterr().err
    assert ".[cuda]" in error and "Traceback" not in error


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("draftsmith.cuda_runtime.check_cuda", lambda: None)
    monkeypatch.setattr("draftsmith.environment.importlib.util.find_spec", lambda name: None)
    assert main(["verify", str(tmp_path), "--provider", "cuda"]) == 2
    assert "no torch, transformers" in (error := capsys.readouterr().err) and ".[cuda,verify]" in error
