"""draftsmith verify: good exports pass, faulty ones fail, and what is no export is refused."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from draftsmith import environment
from draftsmith.cli import main
from draftsmith.verify.checks import Check, Results, Verdict
from draftsmith.verify.folder import open_export
from draftsmith.verify.run import prove, verify
from tests.checkpoints import TINY, tie, variant, without_head
from tests.dialects import options_of, write_as
from tests.drafters import drafter
from tests.faults import Fault
from tests.faults.listing import FAULTS
from tests.faults.trying import PAIR, Catch, Pair, caught_by, try_fault
from tests.faults.unseen import UNSEEN
from tests.nightly import sampled
from tests.runtime import export
from tests.test_draft_beyond import CASES, folder_of
from tests.test_memory import LAUNCHER

TARGET, DFLASH2, DSPARK = PAIR / "target", PAIR / "dflash2", PAIR / "dspark"


def checks_of(folder: Path, target: Path | None = None, drafter_folder: Path | None = None) -> list[Check]:
    results = Results(lambda check: None)
    verify(folder, target, drafter_folder, results)
    return results.checks


def failed(checks: list[Check]) -> list[str]:
    return [str(check) for check in checks if check.verdict is Verdict.FAILED]


# The command proves the DSpark one in every run (test_exit_status).
@pytest.fixture(scope="module", params=sampled(["dflash2", "windowed", "dspark"], every=3))
def proved(request: pytest.FixtureRequest, pairs: dict[str, Pair]) -> tuple[str, Results]:
    """What all checks say of a good pair, of which nothing may change."""
    pair, results = pairs[request.param], Results(lambda check: None)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in pair.export.iterdir()}
    prove(open_export(pair.export), pair.target, pair.drafter, results)
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in pair.export.iterdir()} == before
    return request.param, results


def test_the_pair_passes(proved: tuple[str, Results]) -> None:
    kind, results = proved
    assert not failed(results.checks)
    assert results.verdict is Verdict.PASSED
    names = {check.name for check in results.checks}
    assert {
        "files",
        "names",
        "parser",
        "sharing",
        "drafting",
        "shared tensors",
        "logits",
        "tap 2",
        "tap 4",
        "tap 6",
    } <= names
    assert {"drafter candidates", "drafter scores", "drafter head", "drafts", "Engine with drafts"} <= names
    assert ("drafter convolution" in names) == (kind != "dspark") and "Engine and transformers" in names
    taps = results.figures["taps"]
    assert [figure["nearest"] for figure in taps] == [2, 4, 6] == [figure["tap"] for figure in taps]


def test_drafts_are_worth_something(proved: tuple[str, Results]) -> None:
    """On the texts that verify decodes, some of random tokens, drafts of a trained drafter are accepted."""
    kind, results = proved
    assert results.figures["engine"]["accepted"] > (20 if kind != "windowed" else 0)


# Enough of the faults to see each check fail; scripts/verify_faults.py does all of them.
SAMPLE = [fault for fault in FAULTS if fault.name.startswith("config")][::4]
SAMPLE += [fault for fault in FAULTS if not fault.name.startswith("config")][::6]


@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: fault.name)
def test_faults(pairs: dict[str, Pair], fault: Fault) -> None:
    """Each is caught twice: by what would be written, and by a check that knows nothing of that."""
    catch = try_fault(pairs[fault.kinds[-1]], fault)
    assert catch.otherwise is not None
    assert catch.written is not None or catch.otherwise.startswith(("refused", "files"))


def test_every_fault_changes_the_export(pairs: dict[str, Pair], tmp_path: Path) -> None:
    """A fault that does nothing would not be caught by right."""
    for number, fault in enumerate((*FAULTS, *UNSEEN)):
        for kind in fault.kinds:
            good = pairs[kind].export
            folder = shutil.copytree(good, tmp_path / f"{number}-{kind}" / "export")
            fault.apply(folder)
            files = {path.name: path.read_bytes() for path in folder.iterdir() if not path.is_symlink()}
            assert files != {path.name: path.read_bytes() for path in good.iterdir()}, fault.name
            shutil.rmtree(folder)


def test_there_are_many_faults() -> None:
    both = (*FAULTS, *UNSEEN)
    assert sum(len(fault.kinds) for fault in both) >= 200 and len({fault.name for fault in both}) == len(both)


@pytest.mark.parametrize(
    ("options", "precision", "provider"),
    sampled(
        [
            (("aux_hidden_state_layers=2,8", "prune_lm_head=false"), "bf16", "cuda"),
            ((), "fp32", "cpu"),
            (("use_paged_attention=true", "aux_hidden_state_layers=1,8"), "fp16", "cuda"),
            (("use_paged_attention=true", "state_update_capacity=4", "include_hidden_states=true"), "bf16", "cuda"),
        ],
        every=2,
    ),
)
def test_targets_alone(tmp_path: Path, options: tuple[str, ...], precision: str, provider: str) -> None:
    out = export(TINY, tmp_path / "out", *options, precision=precision, provider=provider)
    checks = checks_of(out, TINY)
    assert not failed(checks)
    taps = [check.name for check in checks if check.name.startswith("tap ")]
    assert taps == [f"tap {tap}" for option in options if "aux" in option for tap in option.split("=")[1].split(",")]


@pytest.mark.parametrize("kind", sampled(["dflash2", "dspark"], every=2))
def test_a_tied_float16_target(tmp_path: Path, kind: str) -> None:
    target = variant(tmp_path / "t", config=tie, tensors=without_head)
    source = drafter(tmp_path / "d", kind)
    out = export(target, tmp_path / "out", f"drafter_path={source}", precision="fp16", provider="cuda")
    assert not failed(checks_of(out, target, source))


def test_without_checkpoints_the_rest_is_checked(pairs: dict[str, Pair]) -> None:
    checks = checks_of(pairs["dspark"].export)
    assert not failed(checks)
    skipped = {check.name: check.what for check in checks if check.verdict is Verdict.INCOMPLETE}
    assert "--target" in skipped["logits"] and "--drafter" in skipped["drafter scores"]
    assert "--target" in skipped["Engine and transformers"]
    assert "Engine with drafts" in {check.name for check in checks}


# --- the command ---


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_exit_status(capsys: pytest.CaptureFixture[str], pairs: dict[str, Pair], tmp_path: Path) -> None:
    pair = pairs["dspark"]
    status, out, _ = run(capsys, "verify", pair.export, "--target", TARGET, "--drafter", DSPARK)
    assert status == 0 and "The export passes" in out and "passed      tap 2: the output of layer 1" in out
    folder = shutil.copytree(pair.export, tmp_path / "faulty")
    next(fault for fault in FAULTS if fault.name == "tap 1 before its layer").apply(folder)
    status, out, _ = run(capsys, "verify", folder, "--target", TARGET, "--drafter", DSPARK)
    assert status == 1 and "FAILED      tap 2: should be the output of layer 1, is nearest to that of layer 0" in out


def test_what_is_no_export(capsys: pytest.CaptureFixture[str], pairs: dict[str, Pair], tmp_path: Path) -> None:
    for folder, expected in ((tmp_path / "nowhere", "does not exist"), (TINY, "holds no export")):
        status, _, err = run(capsys, "verify", folder)
        assert status == 2 and expected in err
    for name, expected in (("dspark.onnx", "names is missing"), ("model.onnx", "names is missing")):
        folder = shutil.copytree(pairs["dspark"].export, tmp_path / name)
        (folder / name).unlink()
        status, _, err = run(capsys, "verify", folder)
        assert status == 2 and expected in err and name in err
    (folder / name).write_bytes(b"\\xff no graph")
    status, _, err = run(capsys, "verify", folder)
    assert status == 2 and "damaged" in err
    (folder / "genai_config.json").write_text("{")
    status, _, err = run(capsys, "verify", folder)
    assert status == 2 and "not valid JSON" in err


def test_the_wrong_checkpoints(capsys: pytest.CaptureFixture[str], pairs: dict[str, Pair]) -> None:
    status, _, err = run(capsys, "verify", pairs["dspark"].export, "--target", DSPARK)
    assert status == 2 and "config.json" in err
    status, _, err = run(capsys, "verify", pairs["dspark"].export, "--drafter", TARGET)
    assert status == 2 and "a target model" in err
    status, out, _ = run(capsys, "verify", pairs["dspark"].export, "--drafter", DFLASH2, "--target", TARGET, "--files")
    assert status == 1 and "kind is dspark, by the tensors dflash2" in out


def test_another_target_of_the_same_shape_fails(pairs: dict[str, Pair]) -> None:
    names = " ".join(failed(checks_of(pairs["dflash2"].export, TINY, DFLASH2)))
    assert "shared tensors" in names and "logits" in names and "tap 2" in names


def test_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    versions = {"onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(environment, "_version", versions.get)
    status, _, err = run(capsys, "verify", tmp_path)
    assert status == 2 and "onnxruntime-gpu 1.31.1" in err and "second environment" in err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, err = run(capsys, "verify", tmp_path)
    assert status == 2 and "no torch, transformers, onnxruntime_genai" in err


def test_a_long_prompt_needs_little_memory(pairs: dict[str, Pair]) -> None:
    """2,000 tokens. A small process launches the one that is measured, for pytest's own peak would be counted."""
    code = (
        "import sys, tempfile; from pathlib import Path\n"
        "from draftsmith.validation.widen import widen; from draftsmith.validation.engine import run_engine\n"
        "low = Path(tempfile.mkdtemp()) / 'low'; widen(Path(sys.argv[1]), low)\n"
        "run = run_engine(low, [[5 + i % 600 for i in range(2000)]], 4)\n"
        "assert len(run.tokens[0]) == 4\n"
    )
    folder = pairs["dspark"].export.parent / "long"
    export(TARGET, folder, f"drafter_path={DSPARK}", precision="bf16", provider="cuda")
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    assert 50_000 < int(done.stdout) < 1_200_000  # kilobytes


def test_caught_by_tells_the_check(pairs: dict[str, Pair], tmp_path: Path) -> None:
    folder = shutil.copytree(pairs["dflash2"].export, tmp_path / "faulty")
    next(fault for fault in FAULTS if fault.name == "every tap one layer late").apply(folder)
    assert caught_by(pairs["dflash2"], folder) == Catch("graphs as written", "tap 2")


def test_an_export_of_the_runtimes_own_builder(tmp_path: Path) -> None:
    """It is checked as far as it goes: what is wrong with it is named, and nothing stops the rest."""
    source = drafter(tmp_path / "d", "dflash2")
    options = [
        "use_paged_attention=true",
        "exclude_mtp=true",
        "aux_hidden_state_layers=2,4,6",
        f"dflash2_path={source}",
    ]
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options", *options]
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    checks = {check.name: check for check in checks_of(tmp_path / "out", TINY, source)}
    names = ("files", "names", "parser", "sharing", "target's config.json", "drafter's config.json", "tap 2")
    assert all(checks[name].verdict is Verdict.PASSED for name in names)
    section = checks["dflash2's section"].what
    assert "sliding_window is -1" in section and "rotary tables have 4096 positions; 4104" in section
    assert "state_update" not in checks["engine's section"].what or checks["engine's section"].verdict is Verdict.FAILED
    assert (
        "max_draft_tokens is missing" in checks["drafting"].what and "can take back 0 drafts" in checks["drafting"].what
    )
    logits = checks["logits"].error
    assert logits is not None and logits < 1e-2  # it rounds elsewhere, and is no other model
    assert "0 differ" in checks["drafter candidates"].what


BEYOND = ("sinks and biases", "plain DFlash, window", "own tables", "anchor predicts nothing", "reduced, gated")


@pytest.mark.parametrize("name", sampled([*BEYOND, "TorchSpec"], every=6))
def test_drafters_beyond_the_plain_case(tmp_path: Path, name: str) -> None:
    if name in CASES:
        source = folder_of(tmp_path / "d", CASES[name][0], *CASES[name][1])
    else:
        source = write_as(name, "dflash", tmp_path / "d")
    options = options_of(name)
    asked = (f"drafter_path={source}", "context_length=1024", *options)
    out = export(TINY, tmp_path / "out", *asked, precision="bf16", provider="cuda")
    assert not failed(checks_of(out, TINY, source))
