"""What a command says while it works: lines in a job's log, steps with -v, errors alone with -q."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import onnxkit.progress
from onnxkit.progress import Groups, Loudness, loudness, progress_bar
from tests.checkpoints import TINY

REPOSITORY = Path(__file__).parent.parent
EXPORT = ["-i", str(TINY), "-p", "fp32", "-e", "cpu", "-o"]

# The command with a line every millisecond, so that one comes while little is done.
OFTEN = (
    "import sys, onnxkit.progress as p; p.PERIOD = 0.001; from draftsmith.cli import main; sys.exit(main(sys.argv[1:]))"
)
LINE = re.compile(
    r"[A-Z][a-z]+ weights: (\d+%, [\d.]+ \wB? of [\d.]+ MB, (about \d+ s left|nothing yet), [\d.]+ \wB?/s"
    r"|[\d.]+ MB in \d+ s)"
)


def draftsmith(*arguments: object, code: str = OFTEN) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def plain(text: str) -> bool:
    """Whether there is nothing in it that moves a cursor, and each line has an end."""
    return all(c == "\n" or c.isprintable() for c in text) and (not text or text.endswith("\n"))


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = capsys.readouterr().err
    assert plain(text)
    return text.splitlines()


# --- progress in a job's log ---


def test_lines_come_at_their_time_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while nothing is reported: a large tensor takes longer than a line."""
    monkeypatch.setattr(onnxkit.progress, "PERIOD", 0.1)
    with progress_bar(2_000_000_000, "Writing weights") as progress:
        progress(500_000_000)
        time.sleep(0.35)
    first, *_, last = lines = lines_of(capsys)
    assert 3 <= len(lines) <= 4
    assert re.fullmatch(r"Writing weights: 25%, 500.0 MB of 2.0 GB, about \d+ s left, \d.\d GB/s", first)
    assert re.fullmatch(r"Writing weights: 500.0 MB in \d s", last)


def test_a_total_that_is_not_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(onnxkit.progress, "PERIOD", 0.05)
    with progress_bar(None, "Downloading weights") as progress:
        progress(1500)
        time.sleep(0.08)
    assert re.fullmatch(r"Downloading weights: 1.5 kB, [\d.]+ kB/s", lines_of(capsys)[0])


def test_what_is_over_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with progress_bar(10, "Writing weights") as progress:
        progress(10)
    assert lines_of(capsys) == [] and threading.active_count() == before
    assert onnxkit.progress.PERIOD == 10


def test_an_error_ends_the_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(onnxkit.progress, "PERIOD", 0.05)
    before = threading.active_count()
    with pytest.raises(ValueError, match="broken"), progress_bar(10, "Writing weights"):
        time.sleep(0.08)
        raise ValueError("broken")
    assert threading.active_count() == before
    assert not any(" in " in line for line in lines_of(capsys))


def test_an_export_and_its_proof_in_a_job(tmp_path: Path) -> None:
    output = tmp_path / "out"
    export = draftsmith("export", *EXPORT, output)
    assert export.returncode == 0 and plain(export.stderr)
    assert all(LINE.fullmatch(line) for line in export.stderr.splitlines()) and "Writing" in export.stderr
    proof = draftsmith("verify", output, "--target", TINY, "--files")
    assert proof.returncode == 0 and plain(proof.stderr) and "Comparing weights: " in proof.stderr
    assert all(LINE.fullmatch(line) for line in proof.stderr.splitlines())


@pytest.mark.nightly
def test_no_bar_of_a_library_stands_in_a_jobs_log(tmp_path: Path) -> None:
    """transformers has one while it loads the reference."""
    assert draftsmith("export", *EXPORT, tmp_path / "out").returncode == 0
    proof = draftsmith("verify", tmp_path / "out", "--target", TINY)
    assert proof.returncode == 0 and plain(proof.stderr), proof.stderr
    assert "%|" not in proof.stderr


# --- -q and -v ---


@pytest.mark.nightly
def test_quiet_says_nothing_where_all_is_well(tmp_path: Path) -> None:
    output = tmp_path / "out"
    for arguments in (["export", *EXPORT, output], ["verify", output, "--target", TINY, "--files", "--strict"]):
        result = draftsmith(*arguments, "-q")
        assert result.stderr == ""
        assert not any(line.startswith("passed") for line in result.stdout.splitlines())
    assert result.returncode == 3  # only files were asked for, which is said
    assert "incomplete  numbers" in result.stdout and "The proof is incomplete" in result.stdout
    assert (output / "model.onnx").is_file()


def test_quiet_says_what_is_wrong(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = draftsmith("export", "-q", *EXPORT, output, "-c", "x", "--extra_options", "context_length=0")
    assert result.returncode == 2 and "context_length=0" in result.stderr and result.stdout == ""
    assert draftsmith("export", "-q", *EXPORT, output).stdout == ""
    (output / "tokenizer.json").write_text("{}")
    result = draftsmith("verify", "-q", output, "--target", TINY, "--files")
    assert result.returncode == 1 and "FAILED" in result.stdout and "The export fails" in result.stdout


def test_verbose_tells_each_step(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = draftsmith("export", "-v", *EXPORT, output)
    assert result.returncode == 0 and "Exported to" in result.stdout and plain(result.stderr)
    lines = [line for line in result.stderr.splitlines() if not LINE.fullmatch(line)]
    assert all(re.match(r" +\d+\.\d\d s  ", line) for line in lines)
    steps = [line.split(" s  ", 1)[1] for line in lines]
    assert steps[0] == f"opened {TINY}: headers of 132 tensors in 1 files"
    for part in (
        "planned: ",
        "writing to ",
        "model.onnx and its data: ",
        "  model.layers.7: 6 tensors",
        "in place",
    ):
        assert any(part in step for step in steps), part
    result = draftsmith("verify", "-v", output, "--target", TINY, "--files")
    for part in (
        "checking: contract",
        "comparing the weights of model.onnx",
        "  model.layers.0: ",
        "checking: left out",
    ):
        assert part in result.stderr


@pytest.mark.parametrize("command", [["export", *EXPORT, "out"], ["verify", "out"]])
def test_quiet_and_verbose_are_two_things(command: list[str]) -> None:
    result = draftsmith(*command, "-q", "-v")
    assert result.returncode == 2 and "--verbose" in result.stderr and "--quiet" in result.stderr


def test_loudness_ends_with_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("builder.export")
    with loudness(Loudness.VERBOSE):
        log.info("a step of \x1b[31m%s", "a stranger")
    log.info("not told")
    with loudness(Loudness.QUIET):
        log.info("not told either")
    (line,) = lines_of(capsys)
    assert line.endswith(r" s  a step of \x1b[31ma stranger")
    assert not logging.getLogger("builder").handlers


def test_layers_are_told_once_each() -> None:
    """Whatever the order in which threads take the tensors."""
    sizes = {"embed": 1000, "layers.0.a": 2000, "layers.0.b": 500, "layers.1.a": 3000, "constant": 8}
    told: list[str] = []
    groups = Groups(told.append, sizes)
    for name in ("layers.0.a", "layers.1.a", "embed", "constant", "nothing of ours", None, "layers.0.b"):
        groups.began(name)
    assert told == ["  layers.1: 3.0 kB", "  embed: 1.0 kB", "  layers.0: 2 tensors, 2.5 kB"]
