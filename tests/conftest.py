"""Fixtures that many tests share, how many threads a test has, and what is left to the nightly run."""

from __future__ import annotations

import os

# Before torch is loaded: with a thread for each core, those of torch, of onnxruntime and of the other worker of the
# suite wait for each other, and a proof takes several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder import output as output_module
from draftsmith.validation.reference import load_reference
from tests.checkpoints import TINY
from tests.faults.trying import Pair, make_pair
from tests.nightly import NIGHTLY, REASON
from tests.output_folders import mounted, unsupported
from tests.runtime import export


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is for the nightly run."""
    for item in items:
        if not NIGHTLY and item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def reference() -> Any:
    """transformers' model of the bundled checkpoint, float32."""
    return load_reference(TINY)


@pytest.fixture(scope="session")
def tiny_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled checkpoint, exported as the README does it."""
    return export(TINY, tmp_path_factory.mktemp("exports") / "tiny")


@pytest.fixture(scope="session")
def full_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled checkpoint with logits of every token and hidden states."""
    folder = tmp_path_factory.mktemp("exports") / "full"
    return export(TINY, folder, "prune_lm_head=false", "include_hidden_states=true")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """The bundled pair, exported: with either drafter, and with the DFlash 2 one told that it has a window."""
    work = tmp_path_factory.mktemp("pairs")
    first = make_pair(work, "dflash2")
    return {"dflash2": first} | {kind: make_pair(work, kind, target=first.target) for kind in ("windowed", "dspark")}


@pytest.fixture
def copy(pairs: dict[str, Pair], tmp_path: Path) -> Path:
    """A copy of a good export, to be spoilt."""
    return shutil.copytree(pairs["dflash2"].export, tmp_path / "copy")


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
        monkeypatch.setattr(output_module, "_is_mount", lambda path: path == folder)
    yield folder
    if real:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(params=["exchange", "fallback"])
def beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fallback":
        monkeypatch.setattr(output_module, "_exchange", unsupported)
    return str(request.param)
