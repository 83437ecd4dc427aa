"""The output folder: the exchange in one step, exports put in place inside, errors of the system."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from builder import output as module
from builder.output import OutputFolder
from onnxkit.errors import ExportError
from tests.output_folders import (
    NEW,
    OLD,
    Tree,
    export,
    mounted,
    names,
    only_inside,
    read,
    refused,
    state,
    unsupported,
    write,
)

# The exchange in one step


class Libc:
    """A C library whose renameat2 always fails."""

    def __init__(self, code: int) -> None:
        self.code = code

    def renameat2(self, *arguments: object) -> int:
        ctypes.set_errno(self.code)
        return -1


def use_libc(monkeypatch: pytest.MonkeyPatch, libc: object) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: libc)


@pytest.mark.parametrize("libc", [object(), *map(Libc, (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP))])
def test_exchange_that_is_not_to_be_had(base: Path, monkeypatch: pytest.MonkeyPatch, libc: object) -> None:
    use_libc(monkeypatch, libc)
    assert module._exchange(base, base) is False
    write(base / "out", OLD)
    export(base / "out", NEW)
    assert read(base / "out") == NEW
    assert names(base) == ["out"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EBUSY, errno.EIO])
def test_exchange_that_fails(base: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    use_libc(monkeypatch, Libc(code))
    write(base / "out", OLD)
    before = read(base)
    with pytest.raises(ExportError) as caught:
        export(base / "out", NEW)
    assert os.strerror(code) in str(caught.value)
    assert read(base) == before


# Put in place inside


@pytest.mark.parametrize("before", [{}, OLD])
def test_mount_point_is_filled_inside(mount: Path, before: Tree) -> None:
    write(mount, before)
    node = mount.stat().st_ino
    folder = OutputFolder(mount, [])
    with folder as staging:
        assert staging == mount / ".draftsmith" / "new"
        write(staging, NEW)
        assert names(mount.parent) == ["out"]
        folder.commit()
    assert read(mount) == NEW
    assert (mount.stat().st_ino, names(mount.parent)) == (node, ["out"])


def test_failure_inside(mount: Path) -> None:
    write(mount, OLD)
    before = state(mount)
    with pytest.raises(KeyboardInterrupt), OutputFolder(mount, []) as staging:
        write(staging, NEW)
        raise KeyboardInterrupt
    assert state(mount) == before


def test_unwritable_parent(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base / "out", OLD)
    monkeypatch.setattr(os, "access", lambda path, mode: path != base)
    folder = OutputFolder(base / "out", [])
    with folder as staging:
        assert staging == base / "out" / ".draftsmith" / "new"
        write(staging, NEW)
        folder.commit()
    assert read(base) == {f"out/{name}": data for name, data in NEW.items()}


def test_lost_and_found_of_a_volume(mount: Path) -> None:
    (mount / "lost+found").mkdir()
    export(mount, OLD)
    export(mount, NEW)
    assert read(mount) == NEW
    assert (mount / "lost+found").is_dir()


def test_lost_and_found_elsewhere_is_foreign(base: Path) -> None:
    (base / "out" / "lost+found").mkdir(parents=True)
    refused(base / "out")


def test_bind_mount_is_seen(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = base / "a b\\c"  # space and backslash are escaped in mountinfo
    (base / "source").mkdir()
    odd.mkdir()
    assert not module._is_mount(odd)
    real = mounted("--bind", str(base / "source"), str(odd))
    if not real:
        fake_mountinfo(base, str(odd).replace("\\", "\\134").replace(" ", "\\040"), monkeypatch)
    try:
        assert module._is_mount(odd)
        assert not module._is_mount(base / "source")
        export(odd, NEW)
        assert names(base)[0] == odd.name
        assert read(odd) == NEW
    finally:
        if real:
            subprocess.run(["umount", str(odd)], check=True)


def fake_mountinfo(base: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = base.parent / "mountinfo"
    listing.write_text(f"36 35 98:0 /mnt1 {point} rw,noatime master:1 - ext3 /dev/root rw\n")
    monkeypatch.setattr(module, "_MOUNTS", listing)


def test_mountinfo_escapes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = base / "a b\tc\\d\u00e9"
    fake_mountinfo(base, f"{base}/a\\040b\\011c\\134d\u00e9", monkeypatch)
    assert module._is_mount(odd) is True
    monkeypatch.setattr(module, "_MOUNTS", base / "absent")
    assert module._is_mount(odd) is False


# Errors of the system


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EPERM])
def test_work_folder_that_cannot_be_made(base: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def mkdir(path: Path) -> NoReturn:
        raise OSError(code, os.strerror(code), str(path))

    folder = OutputFolder(base / "out", [])
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(ExportError) as caught, folder:
        pass
    assert caught.value.details["found"] == os.strerror(code)
    assert str(caught.value.details["where"]).endswith(".out.draftsmith")
    assert all(caught.value.details.values())


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EFBIG, errno.ESTALE, errno.ENOMEM, errno.EXFULL])
def test_every_error_of_the_system_has_a_place_and_a_way_out(
    base: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def mkdir(path: Path) -> NoReturn:
        raise OSError(code, "broken")

    folder = OutputFolder(base / "out", [])
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(ExportError) as caught, folder:
        pass
    assert caught.value.details["found"] == "broken" and str(base / "out") in str(caught.value.details["where"])
    assert all(caught.value.details.values())


@pytest.mark.parametrize("mode", ["fallback", "inside"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_commit_interrupted_at_every_move(
    base: Path, monkeypatch: pytest.MonkeyPatch, mode: str, error: BaseException
) -> None:
    monkeypatch.setattr(
        *((module, "_exchange", unsupported) if mode == "fallback" else (module, "_is_inside", only_inside))
    )
    seen = set()
    for n in range(1, 100):
        shutil.rmtree(base / "out", ignore_errors=True)
        write(base / "out", OLD)
        done = interrupted_export(base / "out", n, error, monkeypatch)
        assert read(base) in [{f"out/{name}": data for name, data in tree.items()} for tree in (OLD, NEW)]
        seen.add(read(base / "out") == NEW)
        if done:
            break
    assert done
    assert n > (2 if mode == "fallback" else len(os.listdir(base / "out")))  # noqa: PTH208
    assert seen == {False, True}


def interrupted_export(path: Path, n: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Exports with an error at the n-th move; True where there were fewer moves."""
    rename, left = Path.rename, [n]

    def failing(source: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] == 0:
            raise error
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        try:
            export(path, NEW)
        except (KeyboardInterrupt, ExportError):
            return False
    return True


def test_cleaning_up_does_not_hide_the_first_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "no", str(path))

    with pytest.raises(ValueError, match="first"), OutputFolder(base / "out", []):
        monkeypatch.setattr(module, "_remove", remove)
        raise ValueError("first")
    monkeypatch.undo()
    with pytest.raises(ExportError), OutputFolder(base / "out", []):  # and the lock was released
        monkeypatch.setattr(module, "_remove", remove)
    monkeypatch.undo()
    export(base / "out", NEW)
    assert names(base) == ["out"]
