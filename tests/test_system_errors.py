"""What the system refuses, and what changes under our hands: each ends with exit 2, a place and a way out."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.cli import guarded, main
from builder.output import OutputFolder
from onnxkit.errors import ExportError, system_error
from onnxkit.weights import streamed
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import TINY, variant
from tests.nightly import sampled
from tests.output_folders import NEW, names, read, write
from tests.refusals import refused, refused_checkpoint

REPOSITORY = Path(__file__).parent.parent
EXPORT = f'"{sys.executable}" -m builder -i "{TINY}" -o "$OUT" -p fp32 -e cpu'
INSPECT = f'"{sys.executable}" -m draftsmith.cli inspect "{TINY}"'


def shell(script: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", script]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env={**os.environ, "OUT": str(out)})


# --- a source that changes ---


def replaced(path: Path) -> None:
    """Another file takes its place, as a download does it."""
    shutil.copy2(path, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def grown(path: Path) -> None:
    """It gets longer, and its time is set back."""
    before = path.stat()
    with path.open("ab") as file:
        file.write(b" ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def overwritten(path: Path) -> None:
    """The same bytes are written again."""
    path.write_bytes(path.read_bytes())


def disguised(path: Path) -> None:
    """Other bytes are written, and its time is set back."""
    before = path.stat()
    time.sleep(0.02)
    with path.open("r+b") as file:
        file.seek(before.st_size - 1)
        file.write(b" ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [replaced, grown, overwritten, disguised, Path.unlink], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_source_that_changes_while_it_is_read(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    name: str,
) -> None:
    checkpoint = variant(tmp_path / "c")
    save = __import__("builder.package", fromlist=["save"]).save

    def saved(*arguments: object) -> None:
        save(*arguments)
        change(checkpoint / name)

    monkeypatch.setattr("builder.package.save", saved)
    message = refused(capsys, "-i", checkpoint, "-o", tmp_path / "out", "-p", "fp32", "-e", "cpu")
    assert name in message and not (tmp_path / "out").exists() and names(tmp_path) == ["c"]


def test_a_file_cut_short_while_it_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = variant(tmp_path / "c")
    read_header = __import__("onnxkit.weights.checkpoint", fromlist=["read_header"]).read_header

    def cut(path: Path) -> object:
        found = read_header(path)
        os.truncate(path, path.stat().st_size // 2)
        return found

    monkeypatch.setattr("onnxkit.weights.checkpoint.read_header", cut)
    assert "checkpoint" in refused_checkpoint(capsys, checkpoint, tmp_path)


def test_what_does_not_change_a_file_is_no_change(tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    (tmp_path / "other").hardlink_to(checkpoint / "model.safetensors")
    opened = Checkpoint(checkpoint)
    (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "README.md").touch()
    (tmp_path / "other").unlink()  # changes the time that nobody can set
    opened.check_unchanged()


# --- errors of the system ---


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_every_number_has_a_message(code: int) -> None:
    message = str(system_error(OSError(code, os.strerror(code)), "here"))
    for part in ("where:    here", "found:    ", "accepted: ", "to do:    "):
        assert part in message


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EACCES])
def test_a_source_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    class Broken:
        def readinto(self, _: object) -> int:
            raise OSError(code, os.strerror(code))

    whole = streamed.read_exactly
    monkeypatch.setattr(streamed, "read_exactly", lambda file, count, path: whole(Broken(), count, path))  # type: ignore[arg-type]
    message = refused_checkpoint(capsys, TINY, tmp_path)
    assert str(TINY / "model.safetensors") in message and os.strerror(code) in message
    assert "output folder" not in message


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), OSError("no number"), MemoryError()])
def test_whatever_is_left_is_a_block(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    def command() -> None:
        raise error

    assert guarded(command) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in ("error: ", "where:", "found:", "accepted:", "to do:"))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders(base: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    fsync = os.fsync

    def refuse(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().is_dir():
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    folder = OutputFolder(base / "out", [])
    with folder as staging:
        write(staging, NEW)
        folder.commit()
    assert read(base / "out") == NEW and len(folder.notes) == 1 and "power cut" in folder.notes[0]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_disk_that_fails_to_sync(base: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def fail(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().is_dir() == (kind == "folder"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    folder = OutputFolder(base / "out", [])
    with pytest.raises(ExportError) as caught, folder as staging:
        write(staging, NEW)
        folder.commit()
    assert ".out.draftsmith" in str(caught.value.details["where"]) and "dmesg" in str(caught.value)
    assert names(base) == []


def test_limits_of_the_shell(tmp_path: Path) -> None:
    size = shell(f"ulimit -f 1000; {EXPORT}", tmp_path / "out")
    assert size.returncode == 2 and "ulimit -f" in size.stderr and names(tmp_path) == []
    files = shell(
        f'"{sys.executable}" -c "import builder.export, resource, sys; from builder.cli import main;'
        ' resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5)); sys.exit(main(sys.argv[1:]))"'
        f' -i "{TINY}" -o "$OUT" -p fp32 -e cpu',
        tmp_path / "out",
    )
    assert files.returncode == 2 and "ulimit -n" in files.stderr and "Traceback" not in files.stderr


# --- the standard streams ---


@pytest.mark.parametrize("command", [EXPORT, INSPECT, INSPECT.replace("inspect", "--help").rsplit('"', 2)[0]])
def test_full_output(tmp_path: Path, command: str) -> None:
    result = shell(f"{command} >/dev/full", tmp_path / "out")
    assert result.returncode == 2
    assert "standard output" in result.stderr and "No space left" in result.stderr and "to do:" in result.stderr
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr


STREAMS = ("<&- >&- 2>&-", ">&-", "2>/dev/full", "2>&-", ">&- 2>&-", ">&- 2>/dev/full")


@pytest.mark.parametrize("streams", sampled(STREAMS, every=2))
def test_closed_and_full_streams_kill_no_run(tmp_path: Path, streams: str) -> None:
    """Nor does what would have been printed land in a file of the export, or on the other stream."""
    assert shell(EXPORT, tmp_path / "plain").returncode == 0
    result = shell(f"{EXPORT} {streams}", tmp_path / "out")
    assert result.returncode == 0 and result.stderr == ""
    assert read(tmp_path / "out") == read(tmp_path / "plain")
    wrong = shell(f"{EXPORT} --extra_options a=1 {streams}", tmp_path / "none")
    assert wrong.returncode == 2 and wrong.stdout == ""


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    result = shell(f"({INSPECT}; echo $? >&2) | head -1", tmp_path)
    assert result.stderr.strip() in ("0", "141") and len(result.stdout.splitlines()) == 1


# --- names ---


@pytest.mark.parametrize("flag", ["-i", "-o", "-c"])
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_path_is_not_the_current_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, "-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", flag, text)
    assert flag in message and "empty path" in message and names(tmp_path) == []


def test_names_that_are_too_long(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    long = tmp_path / ("n" * 300)
    for arguments in (("-i", long, "-o", tmp_path / "out"), ("-i", TINY, "-o", long), ("-i", TINY, "-o", long / "out")):
        message = refused(capsys, *arguments, "-p", "fp32", "-e", "cpu")
        assert "n" * 300 in message and "File name too long" in message
    pair = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options", f"drafter_path={long}"]
    assert "File name too long" in refused(capsys, *pair)


def test_main_is_what_is_tested() -> None:
    """The streams are as they were after a command."""
    before = sys.stdout, sys.stderr
    assert main(["-x"]) == 2
    assert (sys.stdout, sys.stderr) == before
