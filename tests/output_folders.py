"""Exports without a model in them, for the tests of the output folder."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import pytest

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


def refused(path: Path, inputs: Sequence[Path] = ()) -> ExportError:
    with pytest.raises(ExportError) as caught:
        OutputFolder(path, inputs)
    assert all(caught.value.details.values())
    return caught.value
