"""Other operating systems: what is Linux-only is said by name. What is installed: types, metadata, commands to type."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest

import builder.cli
import draftsmith
import draftsmith.cli
from builder.output import OutputFolder, _exchange
from draftsmith.cuda_driver import DriverError, ask_driver
from draftsmith.cuda_runtime import check_cuda
from draftsmith.install import install
from onnxkit import __version__
from onnxkit.errors import ExportError
from tests.checkpoints import TINY
from tests.cuda.environment import environment

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("onnxkit", "drafters", "genai_config", "builder", "draftsmith")
EXPORT = ["-i", str(TINY), "-p", "fp32", "-e", "cpu", "-o"]


# --- other systems ---


@pytest.mark.parametrize(
    "command",
    [
        ["export", *EXPORT, "out"],
        ["verify", "out"],
        ["speculate", "out", "--prompts", "x"],
        ["inspect", "x"],
        ["doctor"],
    ],
)
def test_windows_is_said_by_name(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert draftsmith.cli.main(command) == 2
    error = capsys.readouterr().err
    assert "does not run on Windows" in error and "flock" in error and "WSL 2" in error


def test_windows_for_the_builder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert builder.cli.main([*EXPORT, "out"]) == 2
    assert "An export does not run on Windows" in capsys.readouterr().err


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("freebsd14", "freebsd14")])
def test_a_gpu_is_looked_for_on_linux_only(platform: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ExportError, match="Exports run on a GPU on Linux only") as caught:
        check_cuda()
    assert name in str(caught.value) and "pip install" not in str(caught.value)
    with pytest.raises(DriverError, match=f"Linux only, and this is {name}"):
        ask_driver(lambda library: pytest.fail(f"{library} is loaded"))


def test_the_doctor_says_what_it_cannot_look_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    draftsmith.cli.main(["doctor"])
    assert "GPU: not looked for: drivers and GPUs are found on Linux only, and this is macOS" in capsys.readouterr().out


def test_an_export_without_the_exchange_of_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two renames in its place; renameat2 and its numbers are not even asked for."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: pytest.fail("a library is asked"))
    assert not _exchange(tmp_path, tmp_path)
    for content in ("first", "second"):
        output = OutputFolder(tmp_path / "out", [])
        with output as staging:
            (staging / "genai_config.json").write_text(content)
            (staging / "draftsmith.json").write_text('{"tool": "draftsmith", "files": {"genai_config.json": 1}}')
            output.commit()
        assert (tmp_path / "out" / "genai_config.json").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_stand_in_for_a_device_is_linux_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="Linux's libraries; this is macOS"):
        environment()


def test_linux_is_linux() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        _exchange(Path("/nowhere/a"), Path("/nowhere/b"))
    assert caught.value.errno == errno.ENOENT


# --- what is installed ---


def test_the_module_is_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "draftsmith", "--version"], cwd=REPOSITORY, capture_output=True)
    assert result.stdout.decode() == f"draftsmith {__version__}\n" and draftsmith.__version__ == __version__


def test_every_package_ships_its_types(tmp_path: Path) -> None:
    """A wheel, built from a copy, holds the marker of PEP 561 for every package, and links and classifiers."""
    source = tmp_path / "source"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", tmp_path, source]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, env=os.environ | {"PIP_NO_INDEX": "1"})
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = BytesParser().parsebytes(archive.read(next(name for name in names if name.endswith("/METADATA"))))
    packages = {name.split("/")[0] for name in names if name.endswith("__init__.py")}
    assert packages == set(PACKAGES) and all(f"{name}/py.typed" in names for name in packages)
    assert metadata.get_all("Project-URL") and "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    assert "Programming Language :: Python :: 3.11" in (metadata.get_all("Classifier") or [])


@pytest.mark.parametrize(
    ("extras", "packages"),
    [
        (("cuda",), ["onnxruntime-gpu[cuda,cudnn]", "onnxruntime-genai-cuda", "nvidia-cublas"]),
        (("cpu", "verify"), ["onnxruntime", "onnxruntime-genai", "torch", "transformers"]),
    ],
)
def test_what_to_install_is_what_exists(extras: tuple[str, ...], packages: list[str]) -> None:
    """The repository's extras, or packages that an index has, in the versions of the extras."""
    text = install(*extras)
    assert f"pip install '.[{','.join(extras)}]'" in text
    plain = text.split("anywhere else: pip install ")[1].split("' '")
    assert [package.strip("'").split("<")[0].split(">")[0] for package in plain] == packages
    assert all(">=" in package for package in plain)


def test_no_message_names_a_package_that_is_not_published() -> None:
    """Draftsmith is on no index: nothing tells its users to install it by its name."""
    sources = [path for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py")]
    pages = [*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md"]
    found = [path for path in [*sources, *pages] if "draftsmith[" in path.read_text(encoding="utf-8")]
    assert found == []
