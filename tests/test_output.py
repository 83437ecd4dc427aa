"""The atomic output folder: its checks, both ways to put an export in place, and a kill at every step of each."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from builder import output as module
from builder.output import LAST, MANIFEST, OutputFolder
from onnxkit.errors import ExportError

Tree = dict[str, bytes]
Usage = namedtuple("Usage", "total used free")
ROOT = Path(__file__).resolve().parents[1]
KILLED = 77


def export_of(tag: str, *names: str) -> Tree:
    """The files of an export, all marked with the tag so that a mixture shows."""
    files = {name: f"{tag} {name}".encode() for name in ("model.onnx", "model.onnx.data", LAST, *names)}
    manifest = {"tool": "draftsmith", "version": tag, "files": {name: len(data) for name, data in files.items()}}
    return {**files, MANIFEST: json.dumps(manifest).encode()}


OLD = export_of("old", "gone.bin", "zz-late.bin", "sub/old.bin")
NEW = export_of("new", "aa-early.bin", "sub/deep/new.bin")
NEWEST = export_of("newest")


def write(folder: Path, files: Tree) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def read(folder: Path) -> Tree:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def state(folder: Path) -> list[tuple[str, int, int, int, bytes | None]]:
    """Everything there is below the folder, byte for byte and node for node."""
    return [
        (str(path), path.lstat().st_ino, path.lstat().st_mode, path.lstat().st_mtime_ns, content(path))
        for path in sorted(folder.rglob("*"))
    ]


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def export(path: Path, files: Tree, inputs: Sequence[Path] = ()) -> None:
    folder = OutputFolder(path, inputs)
    with folder as staging:
        assert not names(staging)
        write(staging, files)
        folder.commit()


def mounted(*arguments: str) -> bool:
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False) if shutil.which("mount") else None
    return done is not None and done.returncode == 0


def unsupported(one: Path, other: Path) -> bool:
    return False


def only_inside(folder: Path) -> bool:
    return folder.is_dir()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder that the output stands in, with nothing else in it."""
    folder = tmp_path / "base"
    folder.mkdir()
    return folder


@pytest.fixture
def mount(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An output that cannot be renamed: a mount point, or where nothing can be mounted, one that is taken for such."""
    folder = base / "out"
    folder.mkdir()
    real = mounted("-t", "tmpfs", "none", str(folder))
    if not real:
        monkeypatch.setattr(module, "_is_mount", lambda path: path == folder)
    yield folder
    if real:
        subprocess.run(["umount", str(folder)], check=True)


# What may not be the output


def refused(path: Path, inputs: Sequence[Path] = ()) -> ExportError:
    with pytest.raises(ExportError) as caught:
        OutputFolder(path, inputs)
    assert all(caught.value.details.values())
    return caught.value


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


@pytest.fixture(params=["exchange", "fallback"])
def beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fallback":
        monkeypatch.setattr(module, "_exchange", unsupported)
    return str(request.param)


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


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EACCES, ExportError), (errno.EBUSY, ExportError), (errno.EIO, OSError)]
)
def test_exchange_that_fails(base: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]) -> None:
    use_libc(monkeypatch, Libc(code))
    write(base / "out", OLD)
    before = read(base)
    with pytest.raises(kind) as caught:
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


def test_other_errors_show_their_traceback(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(path: Path) -> NoReturn:
        raise OSError(errno.EIO, "broken")

    folder = OutputFolder(base / "out", [])
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(OSError, match="broken"), folder:
        pass


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


@pytest.mark.parametrize("before", [OLD, {}, ABSENT], ids=["old", "empty", "absent"])
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


@pytest.mark.parametrize("out", ["fallback", "forced inside"], indirect=True)  # an exchange leaves nothing to repair
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
