"""The output folder: a kill at every step of every way, and again during the repair."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from builder import output as module
from builder.output import LAST, OutputFolder
from onnxkit.errors import ExportError
from tests.nightly import sampled
from tests.output_folders import (
    KILLED,
    NEW,
    NEWEST,
    OLD,
    ROOT,
    Tree,
    export,
    names,
    only_inside,
    read,
    unsupported,
    write,
)

# Killed


STEPS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate"}


def changes_files(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    return event in STEPS or (event == "ctypes.dlsym" and arguments[1] == "renameat2")


def killed(step: int, action: Callable[[], None]) -> bool:
    """Runs the action in a child that dies just before its n-th change of a file or folder; False where it has ended.

    The interpreter itself reports the changes (its audit hooks), so that none can be forgotten here.
    """
    child = os.fork()
    if child == 0:
        die_at(step, action)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), "the child failed, see its traceback"
    return code == KILLED


def die_at(step: int, action: Callable[[], None]) -> NoReturn:
    left = step

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if changes_files(event, arguments):
            left -= 1
            if left == 0:
                os._exit(KILLED)

    try:
        sys.addaudithook(hook)
        action()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def aborted(path: Path) -> None:
    with OutputFolder(path, []):
        pass


@pytest.fixture(params=["exchange", "fallback", "forced inside", "mount"])
def out(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output folder in each of the modes. The disk is not waited for: a kill, unlike a power cut, loses nothing."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    if request.param == "mount":
        request.getfixturevalue("mount")
    elif request.param == "forced inside":
        monkeypatch.setattr(module, "_is_inside", only_inside)
    elif request.param == "fallback":
        monkeypatch.setattr(module, "_exchange", unsupported)
    return base / "out"


def reset(out: Path, before: Tree) -> None:
    out.mkdir(exist_ok=True)
    for path in (*out.iterdir(), *(path for path in out.parent.iterdir() if path != out)):
        module._remove(path)
    write(out, before)
    if before is ABSENT and not module._is_inside(out):
        out.rmdir()


ABSENT: Tree = {}


def check_killed(out: Path, before: Tree, exchange: bool) -> None:
    """What is there after a kill: an export that is all old or all new, or none that the runtime would load."""
    found = {
        name: data for name, data in (read(out) if out.exists() else {}).items() if name.split("/")[0] != ".draftsmith"
    }
    if exchange or LAST in found:
        assert found in (before, NEW)


def exchanges(request: pytest.FixtureRequest) -> bool:
    return "exchange" in request.node.callspec.id


def nothing_left(out: Path) -> bool:
    return names(out.parent) in ([], ["out"]) and not (out / ".draftsmith").exists()


BEFORE = [pytest.param(OLD, id="old"), pytest.param({}, id="empty", marks=pytest.mark.nightly)]
BEFORE += [pytest.param(ABSENT, id="absent")]


@pytest.mark.parametrize("before", BEFORE)
def test_killed_at_every_step(request: pytest.FixtureRequest, out: Path, before: Tree) -> None:
    reached, n, dying = set(), 0, True
    while dying:
        n += 1
        for then in (aborted, lambda path: export(path, NEWEST)):
            reset(out, before)
            dying = killed(n, lambda: export(out, NEW))
            check_killed(out, before, exchanges(request))
            then(out)
            after = read(out) if out.exists() else {}
            assert after in ([before, NEW] if then is aborted else [NEWEST])
            assert nothing_left(out)
            reached.add(after == NEW)
    assert n > 10
    assert reached == {False, True}


# An exchange leaves nothing to repair.
@pytest.mark.parametrize("out", sampled(["fallback", "forced inside"], every=2), indirect=True)
def test_killed_again_during_the_repair(out: Path, tmp_path: Path) -> None:
    n, half_way, dying = 0, 0, True
    while dying:
        n += 1
        reset(out, OLD)
        dying = killed(n, lambda: export(out, NEW))
        if not any(path.name in ("old", "placing") for path in out.parent.glob("**/*draftsmith/*")):
            continue  # only a work folder to be removed, which the test above has done
        half_way += 1
        shutil.copytree(out.parent, tmp_path / f"killed{n}")
        m, repairing = 0, True
        while repairing:
            m += 1
            shutil.rmtree(out.parent)
            shutil.copytree(tmp_path / f"killed{n}", out.parent)
            repairing = killed(m, lambda: aborted(out))
            check_killed(out, OLD, exchange=False)
            aborted(out)
            assert read(out) in (OLD, NEW)
            assert nothing_left(out)
        assert m > 5
    assert half_way > 5


def test_killed_run_of_the_other_mode(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun inside is ended inside, even where the folder could be replaced as a whole by now."""
    n, dying = 0, True
    while dying:
        n += 1
        reset(base / "out", OLD)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_is_inside", only_inside)
            dying = killed(n, lambda: export(base / "out", NEW))
        aborted(base / "out")
        assert read(base / "out") in (OLD, NEW)
        assert nothing_left(base / "out")


def test_foreign_file_that_shows_after_the_repair(base: Path) -> None:
    write(base / ".out.draftsmith" / "old", {**OLD, "notes.txt": b"mine"})
    with pytest.raises(ExportError) as caught, OutputFolder(base / "out", []):
        pass
    assert caught.value.details["found"] == "notes.txt"
    assert read(base / "out") == {**OLD, "notes.txt": b"mine"}
    assert names(base) == ["out"]


def test_foreign_file_that_shows_after_the_repair_inside(mount: Path) -> None:
    write(mount, {**OLD, "notes.txt": b"mine"})
    (mount / ".draftsmith" / "old").mkdir(parents=True)
    (mount / LAST).rename(mount / ".draftsmith" / "old" / LAST)
    with pytest.raises(ExportError) as caught, OutputFolder(mount, []):
        pass
    assert caught.value.details["found"] == "notes.txt"
    assert read(mount) == {**OLD, "notes.txt": b"mine"}
    assert names(mount.parent) == ["out"]


def test_old_export_survives_an_output_folder_made_by_hand(base: Path) -> None:
    write(base / ".out.draftsmith" / "old", OLD)
    (base / "out").mkdir()
    aborted(base / "out")
    assert read(base) == {f"out/{name}": data for name, data in OLD.items()}


def test_leftovers_of_any_kind_go(base: Path) -> None:
    write(base, {".out.draftsmith/new/sub/x": b"x", ".out.draftsmith/what": b"y", ".out.draftsmith/old/z": b"z"})
    (base / ".out.draftsmith" / "link").symlink_to(base)
    write(base / "out", OLD)
    with OutputFolder(base / "out", []) as staging:
        assert names(staging.parent) == ["new"]
        assert names(staging) == []
    assert read(base) == {f"out/{name}": data for name, data in OLD.items()}


def test_import_is_light() -> None:
    code = "import builder.output, sys; sys.exit(bool({'numpy', 'onnx', 'onnx_ir', 'torch'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
