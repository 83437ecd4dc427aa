"""The output folder: what it may be, and how an export is put in place beside it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from builder import output as module
from builder.output import LAST, MANIFEST, OutputFolder
from onnxkit.errors import ExportError
from tests.output_folders import (
    NEW,
    NEWEST,
    OLD,
    Tree,
    export,
    mounted,
    names,
    read,
    refused,
    state,
    write,
)

# What may not be the output


def test_input_itself_or_a_parent_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = base / "models" / "input"
    write(source, {"config.json": b"{}"})
    (base / "link").symlink_to(source)
    (base / "up").symlink_to(base / "models")
    before = state(base)
    monkeypatch.chdir(source)
    for path in (source, base, base / "link", base / "up", source / "x" / "..", Path(), Path("..")):
        assert "input" in refused(path, [source]).problem
    for given in (base / "link", base / "up" / "input", Path(), source / "config.json"):
        assert "input" in refused(source, [base / "elsewhere", given]).problem
    assert "input" in refused(base / "models", [base / "link"]).problem
    assert state(base) == before


def test_input_seen_through_a_bind_mount(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base / "input", {"config.json": b"{}"})
    (base / "bound").mkdir()
    real = mounted("--bind", str(base / "input"), str(base / "bound"))
    if not real:
        monkeypatch.setattr(Path, "samefile", lambda one, other: {one.name, other.name} == {"input", "bound"})
    try:
        assert "input" in refused(base / "bound", [base / "input"]).problem
    finally:
        if real:
            subprocess.run(["umount", str(base / "bound")], check=True)


def test_output_inside_the_input_is_allowed(base: Path) -> None:
    write(base, {"config.json": b"{}"})
    export(base / "onnx", NEW, [base])
    assert read(base / "onnx") == NEW
    assert names(base) == ["config.json", "onnx"]


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_file_in_the_way(base: Path, below: str) -> None:
    (base / "file").write_bytes(b"precious")
    error = refused(base / "file" / below)
    assert str(error.details["where"]) == str(base / "file")
    assert read(base) == {"file": b"precious"}


def test_link_to_itself_and_endless_name(base: Path) -> None:
    (base / "loop").symlink_to(base / "loop")
    refused(base / "loop")
    refused(base / "loop" / "sub")
    refused(base / ("x" * 300))
    with pytest.raises(ExportError):  # the name is fine, that of the work folder is not
        export(base / ("x" * 250), NEW)
    assert names(base) == ["loop"]


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"tool": "other", "files": {"model.onnx": 1}}',
        b'{"files": {"model.onnx": 1}}',
        b'{"tool": "draftsmith"}',
        b'{"tool": "draftsmith", "files": ["model.onnx"]}',
    ],
)
@pytest.mark.parametrize("beside", [{"model.onnx": b"mine"}, {}])
def test_folder_that_is_no_export(base: Path, manifest: bytes | None, beside: Tree) -> None:
    write(base / "out", beside if manifest is None else {**beside, MANIFEST: manifest})
    if manifest is None and not beside:
        write(base / "out", {"notes.txt": b"mine"})
    before = state(base)
    error = refused(base / "out")
    assert str(error.details["found"]).splitlines()
    assert state(base) == before


def test_manifest_that_is_a_folder(base: Path) -> None:
    write(base / "out", {f"{MANIFEST}/x": b""})
    refused(base / "out")


@pytest.mark.parametrize(
    "name", ["notes.txt", "sub/notes.txt", "sub2/notes.txt", "model.onnx.bak", ".hidden", LAST + "~"]
)
def test_foreign_file_is_named(base: Path, name: str) -> None:
    write(base / "out", {**OLD, name: b"mine"})
    before = state(base)
    assert name in str(refused(base / "out").details["found"]).splitlines()
    assert state(base) == before


def test_foreign_folder_is_named(base: Path) -> None:
    write(base / "out", OLD)
    (base / "out" / "mine").mkdir()
    assert refused(base / "out").details["found"] == "mine"


def test_note_written_during_the_export_is_kept(base: Path) -> None:
    write(base / "out", OLD)
    folder = OutputFolder(base / "out", [])
    with pytest.raises(ExportError, match="no earlier export lists"), folder as staging:
        write(staging, NEW)
        write(base / "out", {"notes.txt": b"mine"})
        folder.commit()
    assert read(base) == {f"out/{name}": data for name, data in {**OLD, "notes.txt": b"mine"}.items()}


def test_folder_made_during_the_export_is_kept(base: Path) -> None:
    folder = OutputFolder(base / "out", [])
    with pytest.raises(ExportError), folder as staging:
        write(staging, NEW)
        write(base / "out", {"notes.txt": b"mine"})
        folder.commit()
    assert read(base) == {"out/notes.txt": b"mine"}


def test_output_without_permission(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base / "out", OLD)
    monkeypatch.setattr(os, "access", lambda path, mode: path != base / "out")
    assert "permissions" in str(refused(base / "out").details["to do"])


# Put in place beside


@pytest.mark.parametrize("before", [None, {}, OLD, NEW])
def test_output_is_replaced(base: Path, beside: str, before: Tree | None) -> None:
    if before is not None:
        (base / "out").mkdir()
        write(base / "out", before)
    export(base / "out", NEW)
    assert read(base / "out") == NEW
    assert names(base) == ["out"]
    export(base / "out", NEWEST)
    assert read(base / "out") == NEWEST
    assert names(base) == ["out"]


def test_relative_path_survives_a_change_of_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    folder = OutputFolder(Path("a/../out"), [])
    monkeypatch.chdir("/")
    with folder as staging:
        assert staging.is_absolute()
        write(staging, NEW)
        folder.commit()
    assert read(base / "out") == NEW


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("before", [None, {}, OLD])
def test_failure_leaves_everything_as_it_was(base: Path, error: type[BaseException], before: Tree | None) -> None:
    if before is not None:
        (base / "out").mkdir()
        write(base / "out", before)
    untouched = state(base)
    with pytest.raises(error), OutputFolder(base / "out", []) as staging:
        write(staging, NEW)
        raise error
    assert state(base) == untouched
    with OutputFolder(base / "out", []) as staging:  # an end without commit() is no error, and changes nothing
        write(staging, NEW)
    assert state(base) == untouched


def test_failure_after_the_commit_keeps_the_export(base: Path, beside: str) -> None:
    write(base / "out", OLD)
    folder = OutputFolder(base / "out", [])
    with pytest.raises(ValueError, match="late"), folder as staging:
        write(staging, NEW)
        folder.commit()
        raise ValueError("late")
    assert read(base / "out") == NEW
    assert names(base) == ["out"]


def test_parents_are_made_and_removed(base: Path) -> None:
    path = base / "a" / "b" / "out"
    with pytest.raises(ValueError, match="stop"), OutputFolder(path, []):
        assert names(path.parent) == [".out.draftsmith"]
        raise ValueError("stop")
    assert names(base) == []
    with pytest.raises(ValueError, match="stop"), OutputFolder(path, []):
        write(base / "a", {"notes.txt": b"mine"})
        raise ValueError("stop")
    assert names(base / "a") == ["notes.txt"]
    export(path, NEW)
    assert read(path) == NEW


def test_linked_output(base: Path, beside: str) -> None:
    write(base / "real" / "out", OLD)
    (base / "link").symlink_to(Path("real") / "out")
    export(base / "link", NEW)
    assert (base / "link").is_symlink()
    assert read(base / "real" / "out") == NEW
    assert names(base) == ["link", "real"]
    assert names(base / "real") == ["out"]


def test_link_to_nothing_yet(base: Path) -> None:
    (base / "link").symlink_to(base / "real" / "out")
    export(base / "link", NEW)
    assert (base / "link").is_symlink()
    assert read(base / "real" / "out") == NEW


def test_linked_files_are_not_followed(base: Path) -> None:
    write(base, {"elsewhere/model.onnx": b"mine"})
    write(base / "out", OLD)
    (base / "out" / "model.onnx").unlink()
    (base / "out" / "model.onnx").symlink_to(base / "elsewhere" / "model.onnx")
    export(base / "out", NEW)
    assert read(base / "elsewhere") == {"model.onnx": b"mine"}


def test_permissions(base: Path, beside: str) -> None:
    umask = os.umask(0o027)
    try:
        export(base / "out", OLD)
        assert stat.S_IMODE((base / "out").stat().st_mode) == 0o750
        for mode in (0o775, 0o700):
            (base / "out").chmod(mode)
            export(base / "out", NEW)
            assert stat.S_IMODE((base / "out").stat().st_mode) == mode
        shutil.rmtree(base / "out")
        (base / "out").mkdir()
        (base / "out").chmod(0o711)
        export(base / "out", NEW)
        assert stat.S_IMODE((base / "out").stat().st_mode) == 0o711
    finally:
        os.umask(umask)


def test_commit_wants_something_staged(base: Path) -> None:
    folder = OutputFolder(base / "out", [])
    with pytest.raises(RuntimeError):
        folder.commit()
    with folder, pytest.raises(RuntimeError):
        folder.commit()
    assert names(base) == []


def test_everything_is_on_the_disk_before_it_is_in_place(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base / "out", OLD)
    events: list[str] = []
    exchange = module._exchange

    def fsync(handle: int) -> None:
        events.append(str(Path(f"/proc/self/fd/{handle}").readlink()))

    def noted(one: Path, other: Path) -> bool:
        events.append("exchange")
        return exchange(one, other)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(module, "_exchange", noted)
    export(base / "out", NEW)
    staging = base / ".out.draftsmith" / "new"
    at = events.index("exchange")
    assert set(events[:at]) == {str(staging / name) for name in (*NEW, "sub", "sub/deep", ".")}
    assert events[at + 1 :] == [str(base)]
