"""Mistakes of a user: each ends with exit 2 and one message that names the place, and the output stays as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builder.cli import main
from tests.checkpoints import TINY, variant
from tests.refusals import refused, refused_checkpoint
from tests.runtime import export

# --- the command line ---


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["-o/--output", "-p/--precision", "-e/--execution_provider"]),
        (["-o", "out", "-p", "fp32", "-e", "cpu"], ["neither -i nor -m"]),
        (["-i", TINY, "-m", "Qwen/Qwen3.5-4B", "-o", "out", "-p", "fp32", "-e", "cpu"], ["named twice", "Qwen3.5-4B"]),
        (["-i", TINY, "-o", "out", "-p", "fp23", "-e", "cpu"], ["-p", "'fp23'", "Did you mean fp32?"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cudo"], ["-e", "'cudo'", "Did you mean cuda?"]),
        (["-i", TINY, "-o", "out", "-p", "int4", "-e", "cpu"], ["-p", "'int4'", "bf16 or fp16 or fp32"]),
        (["-i", TINY, "-o", "out", "-p", "bf16", "-e", "cpu"], ["-p bf16 -e cpu", "-e cpu with -p fp32"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "--extra_option", "a=1"], ["--extra_option", "_options"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "--outptu", "x"], ["--outptu", "Did you mean --output?"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "stray"], ["stray"]),
        (["-i"], ["expected one argument"]),
    ],
)
def test_command_line(capsys: pytest.CaptureFixture[str], arguments: list[object], expected: list[str]) -> None:
    message = refused(capsys, *arguments)
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["context_lenght=10"], ["'context_lenght'", "Did you mean context_length?"]),
        (["prune_lmhead=true"], ["Did you mean prune_lm_head?"]),
        (["zzz=1"], ["'zzz'", "context_length, include_hidden_states, prune_lm_head", "--help"]),
        (["context_length"], ["has no value", "context_length=VALUE"]),
        (["prune_lm_head"], ["prune_lm_head=VALUE"]),
        (["=5"], ["not known"]),
        (["context_length="], ["'a whole number from 1".removeprefix("'")]),
        (["context_length=0"], ["'0'", "whole number from 1"]),
        (["context_length=-3"], ["'-3'"]),
        (["context_length=1.5"], ["'1.5'"]),
        (["context_length=1e3"], ["'1e3'"]),
        (["context_length=\uff14"], ["whole number"]),
        (["context_length=4097"], ["4097", "1 to 4096", "max_position_embeddings"]),
        (["prune_lm_head=maybe"], ["'maybe'", "true or false"]),
        (["include_hidden_states=2"], ["'2'", "true or false"]),
        (["context_length=8", "context_length=9"], ["given twice", "context_length=9 after context_length=8"]),
        (["prune_lm_head=true", "prune_lm_head=false"], ["given twice"]),
        (["aux_hidden_state_layers=,"], ["separated by commas"]),
        (["context_length=2147483648"], ["'2147483648'"]),
    ],
)
def test_extra_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], expected: list[str]
) -> None:
    message = refused_checkpoint(capsys, TINY, tmp_path, *options)
    for part in expected:
        assert part in message


def test_a_second_list_of_options_adds_to_the_first(tmp_path: Path) -> None:
    arguments = ["-i", str(TINY), "-o", str(tmp_path / "out"), "-p", "fp32", "-e", "cpu"]
    more = [
        "--extra_options",
        "context_length=99",
        "--extra_options",
        "include_hidden_states=true",
        "context_length=99",
    ]
    assert main([*arguments, *more]) == 0
    options = json.loads((tmp_path / "out" / "draftsmith.json").read_text())["options"]
    assert (options["context_length"], options["include_hidden_states"]) == (99, True)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (["--extra_options", "context_length=7"], ["given twice", "context_length=7 after context_length=9"]),
        (["-p", "bf16"], ["-p", "bf16 after -p fp32"]),
        (["--output", "elsewhere"], ["--output", "elsewhere after -o out"]),
        (["--input", "elsewhere"], ["--input", "elsewhere after -i"]),
    ],
)
def test_what_contradicts_itself(capsys: pytest.CaptureFixture[str], second: list[str], expected: list[str]) -> None:
    first = ["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "--extra_options", "context_length=9"]
    message = refused(capsys, *first, *second)
    for part in expected:
        assert part in message


def test_a_blank_list_is_none(tmp_path: Path) -> None:
    """As scripts write it that fill in variables: the bytes are those without the option."""
    folders = [export(TINY, tmp_path / name, *options) for name, options in BLANK.items()]
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1] == contents[2]


BLANK = {"none": (), "blank": ("aux_hidden_state_layers=",), "space": ("aux_hidden_state_layers= ",)}


# --- folders and files ---


def test_no_such_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    message = refused_checkpoint(capsys, tmp_path / "nowhere", tmp_path)
    assert "does not exist" in message and "nowhere" in message


def test_input_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "not a folder" in refused_checkpoint(capsys, TINY / "config.json", tmp_path)


def test_no_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "config.json").unlink()
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "config.json" in message and "model.safetensors" in message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000, "\xff"])
def test_config_is_no_json_object(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refused_checkpoint(capsys, checkpoint, tmp_path)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_other_files_are_no_json(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / name).write_text("{,}")
    assert name in refused_checkpoint(capsys, checkpoint, tmp_path)


def test_no_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "pytorch_model.bin" in message and "model.safetensors" in message


def test_weights_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", shards=2)
    shutil.copy(TINY / "model.safetensors", checkpoint)
    assert "twice" in refused_checkpoint(capsys, checkpoint, tmp_path)


# --- the output folder (its own tests are in test_output.py) ---


@pytest.mark.parametrize("place", [".", "..", "sub/.."])
def test_output_is_the_input_or_its_parent(capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str) -> None:
    checkpoint = variant(tmp_path / "parent" / "c")
    (checkpoint / "sub").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refused(capsys, "-i", checkpoint, "-o", checkpoint / place, "-p", "fp32", "-e", "cpu")
    assert sorted(tmp_path.rglob("*")) == before


def test_output_holds_something_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    message = refused(capsys, "-i", TINY, "-o", output, "-p", "fp32", "-e", "cpu")
    assert "thesis.txt" in message
    assert (output / "thesis.txt").read_text() == "years of work"


def test_no_room(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=20 << 20))
    message = refused_checkpoint(capsys, TINY, tmp_path)
    assert "room" in message
