"""verify harms nothing outside its folder, runs nobody else's code, and blames no export for the machine's troubles."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from draftsmith.validation.widen import needed_config
from draftsmith.verify import machine
from draftsmith.verify.checks import Results, Verdict
from draftsmith.verify.machine import MachineError, available_memory
from tests.faults.trying import Pair
from tests.verifying import DFLASH2, TARGET, command, edit_json, failed, named, proof

# --- it harms nothing ---


def tree(folder: Path) -> dict[str, str]:
    """All files below a folder, with what is in them."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["../other/model.onnx", "/tmp/model.onnx", "sub/model.onnx", "..", "", "a\\b"])
def test_a_file_name_is_plain(copy: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(copy, tmp_path / "other")
    edit_json(copy / "genai_config.json", lambda config: config["model"]["decoder"].update(filename=name))
    before = tree(tmp_path)
    status, _, err = command(capsys, copy)
    assert status == 2 and "outside the folder" in err and tree(tmp_path) == before
    with pytest.raises(ValueError, match="not the name of a file"):
        needed_config(json.loads((copy / "genai_config.json").read_text()))


def test_weights_lie_in_the_folder(copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / "model.onnx.data", tmp_path / "elsewhere.data")
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../elsewhere.data"
    onnx.save(model, copy / "model.onnx")
    before = tree(tmp_path)
    results = proof(copy, TARGET, DFLASH2, run=True)
    assert "not a file's plain name" in named(results, "files").what and tree(tmp_path) == before


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx.data", "notes"])
def test_links_that_lead_outside(copy: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(secret)
    status, _, err = command(capsys, copy)
    assert status == 2 and "leads out of the export" in err and str(copy / name) in err


def test_the_hubs_cache_is_made_of_links(copy: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1234", tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in copy.iterdir():
        shutil.move(path, blobs / f"hash-{path.name}")
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / f"hash-{path.name}")
    assert not proof(snapshot, TARGET, DFLASH2).failed


FOREIGN = ("custom_ops_library", "enable_profiling", "session.optimized_model_filepath")
ROLES = ("decoder", "dflash2")


def add_foreign(folder: Path, roles: Iterable[str], keys: Iterable[str], path: Path) -> None:
    """Set options of sessions that load a library, or write a file."""

    def change(config: dict[str, Any]) -> None:
        for role in roles:
            config["model"][role]["session_options"].update(dict.fromkeys(keys, str(path)))

    edit_json(folder / "genai_config.json", change)


@pytest.mark.parametrize("key", FOREIGN)
@pytest.mark.parametrize("role", ROLES)
def test_foreign_code_is_named(copy: Path, tmp_path: Path, role: str, key: str) -> None:
    add_foreign(copy, [role], [key], tmp_path / "foreign.so")
    results = proof(copy)
    assert "foreign code" in failed(results) and f"{role}.session_options.{key}" in named(results, "foreign code").what


def test_no_foreign_code_runs_and_nothing_is_written(copy: Path, tmp_path: Path) -> None:
    """All of it at once: any one that is not taken out keeps the Engine from starting, or writes its file."""
    add_foreign(copy, ROLES, FOREIGN, tmp_path / "foreign.so")
    before = tree(tmp_path)
    results = proof(copy, run=True)
    assert "foreign code" in failed(results)
    assert named(results, "Engine with drafts").verdict is Verdict.PASSED  # it was run, without that
    assert tree(tmp_path) == before


def test_other_models_of_a_configuration_are_left_out(copy: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["model"]["vision"] = {"filename": "../../vision.onnx"}
        config["model"]["decoder"]["pipeline"] = []

    edit_json(copy / "genai_config.json", change)
    check = named(proof(copy), "left out")
    assert check.verdict is Verdict.INCOMPLETE and "model.vision, model.decoder.pipeline" in check.what


# --- trouble of the machine ---


def test_no_room_is_said_first(
    pairs: dict[str, Pair], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    status, out, err = command(capsys, pairs["dflash2"].export)
    assert status == 2 and "not enough room" in err and not out
    assert command(capsys, pairs["dflash2"].export, "--files")[0] == 0


def test_too_little_memory_is_said_first(
    pairs: dict[str, Pair], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (available_memory() or 0) > 10**8
    monkeypatch.setattr(machine, "available_memory", lambda: 10**6)
    status, out, err = command(capsys, pairs["dflash2"].export)
    assert status == 2 and "not enough memory" in err and "--files" in err and not out


@pytest.mark.parametrize("place", ["nowhere/report.html", "."])
def test_a_report_that_cannot_be_written_is_said_first(
    pairs: dict[str, Pair], tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(capsys, pairs["dflash2"].export, "--report", tmp_path / place)
    assert status == 2 and "report cannot be written" in err and not out and not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EDQUOT])
def test_errors_of_the_machine_are_no_verdict(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/tmp/some file")

    monkeypatch.setattr("draftsmith.verify.copies.widen", broken)
    status, out, err = command(capsys, copy)
    assert status == 2 and "could not be finished on this machine" in err and "FAILED" not in out


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_no_more_memory_is_no_verdict(error: Exception) -> None:
    results = Results(lambda check: None)
    with pytest.raises(MachineError), results.guarded("logits"):
        raise error
    assert not results.checks
    with results.guarded("logits"):
        raise OSError(errno.ENOENT, "no such file")  # that of an export may be missing
    assert results.failed


def test_types_are_followed(pairs: dict[str, Pair]) -> None:
    """Only what is stored in 16 bits counts: a Cast to float32 leads out of it, one back into it."""
    from draftsmith.validation.ranges import value_types

    x, y, z, w = (ir.Value(name=name) for name in "xyzw")
    x.type = ir.TensorType(ir.DataType.FLOAT16)
    nodes = [
        ir.Node("", "Cast", [x], [ir.AttrInt64("to", ir.DataType.FLOAT)], outputs=[y]),
        ir.Node("", "Exp", [y], outputs=[z]),
        ir.Node("", "Cast", [z], [ir.AttrInt64("to", ir.DataType.FLOAT16)], outputs=[w]),
    ]
    types = value_types(ir.Graph([x], [w], nodes=nodes, name="g"))
    half, single = ir.DataType.FLOAT16, ir.DataType.FLOAT
    assert [types[name] for name in "xyzw"] == [half, single, single, half]
