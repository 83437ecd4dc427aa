"""The package as it would be published: its wheel works in another folder, with nothing of the repository."""

from __future__ import annotations

import ast
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from onnxkit import __version__
from tests.installed import ROOT, checked, copy_of_the_repository, new_environment

PACKAGES = ("builder", "drafters", "draftsmith", "genai_config", "onnxkit")
PAIR = ROOT / "tests" / "assets" / "pair"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, made from a copy of the tree."""
    work = tmp_path_factory.mktemp("built")
    tree = copy_of_the_repository(work / "tree")
    checked([sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist", tree], work)
    shutil.rmtree(tree)
    return work / "dist"


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment in which the wheel is installed."""
    python = new_environment(tmp_path_factory.mktemp("wheel") / "venv")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel]
    checked(pip, built)
    return python


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the bundled pair, as a user's."""
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(PAIR, folder / "pair")
    return folder


def test_what_is_in_the_wheel_and_in_the_archive(built: Path) -> None:
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    info = f"draftsmith-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert f"{info}/licenses/LICENSE" in names
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    metadata = zipfile.ZipFile(wheel).read(f"{info}/METADATA").decode()
    assert "\nLicense-Expression: MIT\n" in metadata and "\nLicense-File: LICENSE\n" in metadata
    with tarfile.open(archive) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    assert {*sources, "LICENSE", "README.md", "pyproject.toml"} <= packed
    assert not any(name.startswith(("tests", "scripts")) for name in packed)


def test_every_module_is_the_wheels_own_and_is_imported(python: Path, elsewhere: Path) -> None:
    code = f"""
import importlib, pkgutil
names = [m.name for p in {PACKAGES} for m in pkgutil.walk_packages(importlib.import_module(p).__path__, p + ".")]
for name in names:
    if not name.endswith("__main__"):
        print(importlib.import_module(name).__file__)
"""
    files = checked([python, "-c", code], elsewhere).splitlines()
    assert len(files) > 100 and all(Path(file).is_relative_to(python.parent.parent) for file in files)


def test_the_commands_in_another_folder(python: Path, elsewhere: Path) -> None:
    draftsmith = python.with_name("draftsmith")
    export = ["export", "-i", "pair/target", "-o", "out", "-p", "bf16", "-e", "cuda", "--extra_options"]
    options = ["drafter_path=pair/dflash2", "context_length=1024"]
    assert checked([draftsmith, "--version"], elsewhere) == f"draftsmith {__version__}\n"
    assert "Exported to out" in checked([draftsmith, *export, *options], elsewhere)
    proof = ["verify", "out", "--target", "pair/target", "--drafter", "pair/dflash2", "--strict", "--report", "r.html"]
    assert "The export passes" in checked([draftsmith, *proof], elsewhere)
    assert (elsewhere / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    (elsewhere / "prompts.txt").write_text("Ada found the river.\n", encoding="utf-8")
    speculate = ["speculate", "out", "--prompts", "prompts.txt", "--max-new-tokens", "12", "--baseline"]
    assert "equal for 1 of 1 prompts" in checked([draftsmith, *speculate], elsewhere)
    assert "a DFlash 2 drafter" in checked([draftsmith, "inspect", "pair/dflash2"], elsewhere)
    assert "all is well" in checked([draftsmith, "doctor"], elsewhere)
    dense = ["-m", "builder", "-i", "pair/target", "-o", "dense", "-p", "fp32", "-e", "cpu"]
    assert "Exported to dense" in checked([python, *dense], elsewhere)


def test_what_the_wheel_needs_is_what_the_extras_bring() -> None:
    """Everything that a package imports at its top is a dependency or in an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "draftsmith" and project["license-files"] == ["LICENSE"]
    named = {name.split(">")[0].split("[")[0].replace("-", "_").lower() for name in project["dependencies"]}
    extras = project["optional-dependencies"]
    named |= {name.split(">")[0].split("[")[0].replace("-", "_").lower() for name in extras["cpu"] + extras["verify"]}
    found = set()
    for path in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    outside = found - set(sys.stdlib_module_names) - set(PACKAGES)
    assert {name.lower() for name in outside} - {"google"} <= named  # google.protobuf is onnx's own
