"""The output folder: one run at a time, and room on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from builder import output as module
from builder.output import OutputFolder
from onnxkit.errors import ExportError
from tests.output_folders import (
    NEW,
    OLD,
    Usage,
    export,
    names,
    only_inside,
    read,
    state,
    write,
)

# The lock

HOLDER = """
import fcntl, os, sys
os.mkdir(sys.argv[1])
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
os.mkdir(sys.argv[1] + "/new")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("inside", [False, True])
def test_lock_of_another_process(base: Path, monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    write(base / "out", OLD)
    if inside:
        monkeypatch.setattr(module, "_is_inside", only_inside)
    work = base / "out" / ".draftsmith" if inside else base / ".out.draftsmith"
    command = [sys.executable, "-c", HOLDER, str(work)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        before = state(base)
        with pytest.raises(ExportError, match="Another export is writing") as caught:
            export(base / "out", NEW)
        assert all(caught.value.details.values())
        assert state(base) == before
        holder.send_signal(signal.SIGKILL)
    export(base / "out", NEW)
    assert read(base / "out") == NEW
    assert names(base) == ["out"]


def test_lock_within_the_process(base: Path) -> None:
    with OutputFolder(base / "out", []) as staging:
        with pytest.raises(ExportError, match="Another export"):
            export(base / "out", OLD)
        assert staging.is_dir()
    export(base / "out", NEW)


def test_lock_is_released_although_a_child_has_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, begin = os.pipe()
    folder = OutputFolder(base / "out", [])
    folder.__enter__()
    child = os.fork()
    if child == 0:
        os.close(begin)
        os.read(end, 1)
        os._exit(0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_remove", lambda path: None)  # the same work folder is to be locked again
            folder.__exit__(None, None, None)
        assert names(base) == [".out.draftsmith"]
        export(base / "out", NEW)
    finally:
        os.close(begin)
        os.close(end)
        os.waitpid(child, 0)


@pytest.mark.parametrize("times", [1, 1000])
@pytest.mark.parametrize("again", [False, True])
def test_work_folder_removed_while_locking(
    base: Path, monkeypatch: pytest.MonkeyPatch, times: int, again: bool
) -> None:
    flock, left = fcntl.flock, [times]
    work = base / ".out.draftsmith"

    def late(handle: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and left[0]:
            left[0] -= 1
            work.rename(base.parent / f"removed{left[0]}")  # its number stays in use, as with a real open folder
            if again:
                work.mkdir()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    if times > 1:
        with pytest.raises(ExportError, match="Another export"):
            export(base / "out", NEW)
    else:
        export(base / "out", NEW)
        assert names(base) == ["out"]


def test_work_folder_removed_before_locking(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, left = os.open, [1]

    def late(path: Path, flags: int, **options: Any) -> int:
        if left[0] and flags & os.O_DIRECTORY:
            left[0] -= 1
            Path(path).rmdir()
        return opened(path, flags, **options)

    monkeypatch.setattr(os, "open", late)
    export(base / "out", NEW)
    assert names(base) == ["out"]


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOLCK])
def test_file_system_without_locks(base: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(handle: int, operation: int) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ExportError, match="no lock"):
        export(base / "a" / "out", NEW)
    assert names(base) == []


@pytest.mark.parametrize("link", [False, True])
def test_something_else_in_the_place_of_the_work_folder(base: Path, link: bool) -> None:
    write(base, {"mine/notes.txt": b"mine"})
    if link:
        (base / ".out.draftsmith").symlink_to(base / "mine")
    else:
        write(base, {".out.draftsmith": b"mine"})
    before = state(base)
    with pytest.raises(ExportError) as caught:
        export(base / "out", NEW)
    assert str(caught.value.details["where"]) == str(base / ".out.draftsmith")
    assert state(base) == before


# Room


def disk(monkeypatch: pytest.MonkeyPatch, free: int) -> list[Path]:
    asked: list[Path] = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        return Usage(2**50, 0, free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked


def test_room(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = disk(monkeypatch, 3 * 2**30)
    folder = OutputFolder(base / "a" / "b" / "out", [])
    folder.check_room(0)
    folder.check_room(3 * 2**30 - 16 * 2**20)
    with pytest.raises(ExportError, match="room") as caught:
        folder.check_room(3 * 2**30 - 16 * 2**20 + 1)
    assert caught.value.details["found"] == "3.00 GiB free"
    assert all(caught.value.details.values())
    assert set(asked) == {base}
    assert names(base) == []


def test_room_inside(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = disk(monkeypatch, 2**40)
    OutputFolder(mount, []).check_room(2**30)
    assert asked == [mount]


def test_room_that_a_killed_run_takes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, 16 * 2**20)
    write(base, {".out.draftsmith/new/model.onnx.data": b"x" * 2**20})
    folder = OutputFolder(base / "out", [])
    folder.check_room(2**20)
    with folder as staging:
        write(staging, {"model.onnx.data": b"x" * 2**20})
        with pytest.raises(ExportError):  # this is our own, and stays
            folder.check_room(2**20)
