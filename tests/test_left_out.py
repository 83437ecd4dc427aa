"""What a drafter's graph does not read, and why: said by the reader as a value, by every tensor's stored name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from drafters.checkpoint.identity import identity
from drafters.checkpoint.names import common_names
from drafters.checkpoint.reading import read_drafter
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from tests.dialects import with_reduced_vocabulary
from tests.drafters import alone
from tests.test_draft_beyond import folder_of
from tests.tiny_drafter import Json, Tensors

Part = Callable[[Json, Tensors], None]


def add(prefix: str = "", **shapes: tuple[int, ...]) -> Part:
    def part(config: Json, tensors: Tensors) -> None:
        tensors |= {
            prefix + name.replace("__", "."): np.zeros(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()
        }

    return part


def frequencies(config: Json, tensors: Tensors) -> None:
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = (1e6 ** (-np.arange(0, 32, 2) / 32)).astype(np.float32)


def copied(config: Json, tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["norm.weight"]


CONFIDENCE = {"weight": (1, 152), "bias": (1,)}


@pytest.mark.parametrize(
    ("kind", "part", "expected"),
    [
        ("dspark", add(), {}),
        ("dspark", add("confidence_head.proj.", **CONFIDENCE), {"confidence_head.proj.weight": "confidence"}),
        ("dspark", add("model.confidence_head.proj.", **CONFIDENCE), {"model.confidence_head.proj.bias": "no use for"}),
        ("dflash2", frequencies, {"layers.0.self_attn.rotary_emb.inv_freq": "computes"}),
        ("dflash", copied, {"norm.weight": "a copy of model.norm.weight"}),
    ],
)
def test_each_reason(tmp_path: Path, kind: str, part: Part, expected: dict[str, str]) -> None:
    folder = folder_of(tmp_path / "d", kind, part)
    left_out = identity(Checkpoint(folder)).left_out
    assert all(reason in left_out[name] for name, reason in expected.items()) and bool(left_out) == bool(expected)
    alone(folder, tmp_path / "out")  # the plan knows of each: none is missed, none is read by nothing


def test_a_map_of_the_vocabulary(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "dspark", with_reduced_vocabulary)
    assert identity(Checkpoint(folder)).left_out == {"t2d": "a mask of the vocabulary, which says the same as d2t"}


def test_a_confidence_head_of_another_kind_is_no_reason(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "d", "dflash2", add("confidence_head.proj.", **CONFIDENCE))
    assert not identity(Checkpoint(folder)).left_out
    with pytest.raises(ExportError, match=r"confidence_head\.proj\.weight"):
        alone(folder, tmp_path / "out")


def test_reading_says_the_same_twice(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "dspark", add("confidence_head.proj.", **CONFIDENCE))
    checkpoint = Checkpoint(folder)
    before = dict(vars(checkpoint))
    first, second = (read_drafter(checkpoint) for _ in range(2))
    assert first == second and vars(checkpoint) == before


@pytest.mark.parametrize(
    ("stored", "meaning"),
    [
        (["gate_proj.weight", "markov_w1.weight"], ["markov_head.gate_proj.weight", "markov_head.markov_w1.weight"]),
        (["context_proj.weight", "final_norm.weight"], ["fc.weight", "norm.weight"]),
        # One producer's words beside another's: the second one's are no words here.
        (["context_proj.weight", "encoder.fc.weight"], ["fc.weight", "encoder.fc.weight"]),
    ],
)
def test_a_producers_words_are_its_own(stored: list[str], meaning: list[str]) -> None:
    assert list(common_names(stored).values()) == meaning
