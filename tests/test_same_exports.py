"""An export is the same, byte for byte, every time it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.variants import dialects, drafters, shapes, targets
from tests.exports import REPOSITORY, Export, dense, every_export, hashes, prepare

LEAST = 60  # exports in every run
KINDS = (
    *("dense", "target", "fp32 for cpu", "fp16 for cuda", "bf16 for cuda", ", fp16", ", bf16"),
    *("tied", "text only", "in shards", "all logits", "hidden states", "taps", "captures", "YaRN", "large pages"),
    *("dflash of", "dflash2 of", "dspark of", "gated of", "windowed", "causal", "sinks", "biases", "own tables"),
    *("reduced", "anchor", "beside float16", "linear 16/48"),
)


def sample() -> list[Export]:
    """Each dense export in one precision, and of the lists of packed ones each one in so many."""
    every = list(dense())
    rotating = [every[3 * number + number % 3] for number in range(len(every) // 3)]
    return [
        *rotating,
        *list(targets())[::3],
        *list(dialects())[::2],
        *list(drafters())[::2],
        *list(shapes())[::7],
    ]


def same_in_two_runs(work: Path, exports: list[Export]) -> None:
    jobs = prepare(work, exports)
    first, second = (hashes(REPOSITORY, jobs, seed) for seed in ("1", "2"))
    assert len(first) == len(exports)
    for name, files in first.items():
        assert "model.onnx" in files and "genai_config.json" in files, name
        assert files == second[name], name


def test_the_sample_has_each_kind() -> None:
    names = list(map(str, sample()))
    assert len(set(names)) >= LEAST
    assert not [kind for kind in KINDS if not any(kind in name for name in names)]


def test_in_two_runs(tmp_path: Path) -> None:
    same_in_two_runs(tmp_path, sample())


@pytest.mark.nightly
def test_all_in_two_runs(tmp_path: Path) -> None:
    same_in_two_runs(tmp_path, every_export())
