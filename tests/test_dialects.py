"""The same drafter in every producer's words: the graph and its bytes are the same, and who wrote it is told."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from drafters.checkpoint.identity import identity
from drafters.checkpoint.reading import read_drafter
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import TINY
from tests.dialects import KINDS, PAIRS, WRITERS, family, options_of, write_as
from tests.nightly import sampled
from tests.runtime import export

# What the runtime runs each kind as.
FILES = {"dflash": "dflash2", "dflash2": "dflash2", "dspark": "dspark", "gated": "dspark"}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dialects")


@cache
def files(base: Path, producer: str, kind: str, yarn: bool) -> dict[str, bytes]:
    """The files of an export that the drafter decides."""
    folder = base / f"{producer} {kind} {yarn}".replace(" ", "-").replace(",", "")
    write_as(producer, kind, folder / "d", yarn=yarn)
    options = (f"drafter_path={folder / 'd'}", *options_of(producer))
    out = export(TINY, folder / "out", *options, precision="bf16", provider="cuda")
    names = (f"{FILES[kind]}.onnx", f"{FILES[kind]}.onnx.data", "model.onnx", "genai_config.json")
    return {name: (out / name).read_bytes() for name in names}


# Each with its scaling of every run first: with YaRN for one of two pairs, without for the other.
SCALED = [(*pair, yarn == bool(number % 2)) for number, pair in enumerate(PAIRS) for yarn in (True, False)]


@pytest.mark.parametrize(("producer", "kind", "yarn"), sampled(SCALED, every=2))
def test_graph_and_bytes_are_equal(exports: Path, producer: str, kind: str, yarn: bool) -> None:
    assert files(exports, producer, kind, yarn) == files(exports, "SpecForge", kind, yarn)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_scalings_differ(exports: Path, kind: str) -> None:
    """Were two kinds' files equal, those above would say nothing."""
    name = f"{FILES[kind]}.onnx.data"
    others = [files(exports, "SpecForge", other, False).get(name) for other in KINDS if other != kind]
    assert files(exports, "SpecForge", kind, False)[name] not in others
    assert files(exports, "SpecForge", kind, False)[name] != files(exports, "SpecForge", kind, True)[name]


@pytest.mark.parametrize(("producer", "kind"), PAIRS)
def test_kind_and_producer_are_told(tmp_path: Path, producer: str, kind: str) -> None:
    checkpoint = Checkpoint(write_as(producer, kind, tmp_path))
    found = identity(checkpoint)
    assert (found.dialect.name, found.family) == (WRITERS[producer][1], family(kind))
    config = read_drafter(checkpoint, block_size=8 if producer == "TorchSpec" else None)
    assert config.notes[0] == str(found)
    assert found.dialect_reason in config.notes[0] and found.family_reason in config.notes[0]


@pytest.mark.parametrize(("producer", "kind"), PAIRS)
def test_architectures_do_not_matter(tmp_path: Path, producer: str, kind: str) -> None:
    """Where a key or a tensor tells the producer, no name in ``architectures`` changes anything."""
    folder = write_as(producer, kind, tmp_path)
    block = 8 if producer == "TorchSpec" else None
    expected = read_drafter(Checkpoint(folder), block_size=block)
    data = json.loads((folder / "config.json").read_text())
    for name in ("DFlash2DraftModel", "DSparkDraftModel", "Qwen3ForCausalLM"):
        data["architectures"] = [name]
        (folder / "config.json").write_text(json.dumps(data))
        config = read_drafter(Checkpoint(folder), block_size=block)
        assert {**vars(config), "notes": ()} == {**vars(expected), "notes": ()}


def test_a_note_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_as("ModelOpt", "dspark", tmp_path / "d")
    export(TINY, tmp_path / "out", f"drafter_path={tmp_path / 'd'}", precision="bf16", provider="cuda")
    out = capsys.readouterr().out
    assert "DSpark by the tensor markov_w1.weight; from NVIDIA ModelOpt by the tensor markov_w1.weight" in out
