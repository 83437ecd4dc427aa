"""YaRN against transformers' own tables, and what of its configuration is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from builder.qwen35.config import TargetConfig, read_target_config
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject
from onnxkit.rotary import Rotary
from tests.checkpoints import TINY, Json, variant
from tests.runtime import export

TRAINED, HEAD = 262144, 256

# As the model cards of Qwen 3.5 and 3.8 give it for contexts of up to a million tokens.
CARD: Json = {
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
    "rope_type": "yarn",
    "rope_theta": 10000000,
    "partial_rotary_factor": 0.25,
    "factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}
SCALES = {"mscale": 1.0, "mscale_all_dim": 0.5}

# Near 0, around the trained context's end, and the far end of a million.
STARTS = (0, TRAINED - 32, 4 * TRAINED - 64)


def read(text: Json) -> TargetConfig:
    """The bundled checkpoint's configuration with the keys of ``text`` in its text part; None removes one."""
    data = json.loads((TINY / "config.json").read_text())
    data["text_config"] |= {"head_dim": HEAD, "max_position_embeddings": TRAINED} | text
    return read_target_config(JsonObject(data, "config.json"))


def rotary(parameters: Json) -> Rotary:
    return read({"rope_parameters": parameters}).rotary


def theirs(parameters: Json, length: int = TRAINED) -> Any:
    config = Qwen3_5TextConfig(head_dim=HEAD, max_position_embeddings=length, rope_parameters=dict(parameters))
    return Qwen3_5TextRotaryEmbedding(config)


def without(*keys: str) -> Json:
    return {key: value for key, value in CARD.items() if key not in keys}


CHANGES: dict[str, Json] = {
    "card": {},
    "betas": {"beta_fast": 16.0, "beta_slow": 2.0},
    "fast only": {"beta_fast": 8},
    "slow only": {"beta_slow": 4},
    "equal betas": {"beta_fast": 5, "beta_slow": 5},
    "one step": {"beta_fast": 5, "beta_slow": 5, "truncate": False},
    "scales": SCALES,
    "attention factor": {"attention_factor": 1.5},
    "attention factor below 1": {"attention_factor": 0.75},
    "attention factor before scales": {"attention_factor": 1.5} | SCALES,
    "no truncation": {"truncate": False},
    "truncation": {"truncate": True},
    "factor 1": {"factor": 1},
    "factor 2.5": {"factor": 2.5},
    "short context": {"original_max_position_embeddings": 65536},
    "tiny context": {"original_max_position_embeddings": 65536, "factor": 64.0, "rope_theta": 1000.0},
    "ramp from below 0": {"original_max_position_embeddings": 128, "factor": 2048.0},
    "no ramp": {"original_max_position_embeddings": 4, "factor": 65536.0},
    "whole head": {"partial_rotary_factor": 1.0, "mrope_section": [43, 43, 42]},
    "half of the head": {"partial_rotary_factor": 0.5, "mrope_section": [22, 21, 21], "rope_theta": 10000.0},
    "nulls": dict.fromkeys(("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_tables(change: Json, start: int) -> None:
    parameters = CARD | change
    ours, module = rotary(parameters), theirs(parameters)
    positions = torch.arange(start, start + 64)[None]
    cos, sin = module(torch.zeros(1), positions.expand(3, 1, -1))
    half = int(HEAD * parameters["partial_rotary_factor"]) // 2
    assert cos.shape[-1] == 2 * half
    assert np.abs(ours.cos(start, start + 64) - cos[0, :, :half].numpy()).max() < 1e-6
    assert np.abs(ours.sin(start, start + 64) - sin[0, :, :half].numpy()).max() < 1e-6


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_frequencies_to_the_last_bit(change: Json) -> None:
    """A frequency off in its last place moves an angle by a sixteenth at a million: the tables above would tell too."""
    parameters = CARD | change
    np.testing.assert_array_equal(rotary(parameters).frequencies(), theirs(parameters).inv_freq.numpy())


@pytest.mark.parametrize(
    "change",
    [
        {"rope_type": "default"},
        {"factor": 3.0},
        {"original_max_position_embeddings": TRAINED // 4},
        {"attention_factor": 1.0},
        {"beta_fast": 8.0},
        {"beta_slow": 4.0},
        {"mscale": 2.0, "mscale_all_dim": 1.0},
        {"mscale": 1.0, "mscale_all_dim": 2.0},
        {"truncate": False},
        {"rope_theta": 5000000.0},
        {"partial_rotary_factor": 0.5, "mrope_section": [22, 21, 21]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_key_changes_the_table(change: Json) -> None:
    tables = [rotary(parameters).cos(TRAINED, TRAINED + 8) for parameters in (CARD, CARD | change)]
    assert tables[0].shape != tables[1].shape or np.abs(tables[0] - tables[1]).max() > 1e-3


@pytest.mark.parametrize(
    "text",
    [
        {"rope_parameters": None, "rope_scaling": without("rope_type") | {"type": "yarn"}},
        {"rope_parameters": CARD, "rope_scaling": {}},
        {"rope_parameters": {}, "rope_scaling": CARD},
        {"rope_parameters": CARD | {"type": "yarn"}},
        {"rope_parameters": CARD, "rope_scaling": without("rope_type") | {"type": "yarn", "factor": 4}},
        {"rope_parameters": without("rope_theta"), "rope_theta": 10000000.0},
        {
            "rope_parameters": None,
            "rope_scaling": without("rope_theta", "partial_rotary_factor"),
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
        },
        {
            "rope_parameters": without("original_max_position_embeddings"),
            "original_max_position_embeddings": TRAINED,
        },
    ],
)
def test_spellings_of_one_configuration(text: Json) -> None:
    assert read(text).rotary == rotary(CARD)
    text = {key: dict(value) if isinstance(value, dict) else value for key, value in text.items()}
    module = Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(head_dim=HEAD, max_position_embeddings=TRAINED, **text))
    np.testing.assert_array_equal(module.inv_freq.numpy(), rotary(CARD).frequencies())


@pytest.mark.parametrize(
    "text",
    [
        {"rope_scaling": without("rope_theta")},  # SpecForge's mirror of rope_parameters
        {"rope_scaling": without("factor", "partial_rotary_factor", "mrope_section")},
        {"rope_scaling": {"mrope_section": [11, 11, 10]}},
        {"rope_parameters": {"rope_theta": 10000000, "partial_rotary_factor": 0.25}, "rope_scaling": CARD},
        {"rope_parameters": without("factor"), "rope_scaling": without("rope_theta")},
    ],
)
def test_a_key_that_one_home_lacks_is_no_disagreement(text: Json) -> None:
    assert read({"rope_parameters": CARD} | text).rotary == rotary(CARD)


def test_a_key_of_the_second_home_counts() -> None:
    text = {"rope_parameters": CARD, "rope_scaling": without("rope_theta") | {"beta_fast": 16}}
    assert read(text).rotary == rotary(CARD | {"beta_fast": 16})


def refused(text: Json) -> str:
    with pytest.raises(ExportError) as caught:
        read(text)
    assert all(str(value) for value in caught.value.details.values())
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"factor": None}, ["rope_parameters.factor", "missing"]),
        ({"original_max_position_embeddings": None}, ["rope_parameters.original_max_position_embeddings", "missing"]),
        ({"factor": 0.5}, ["factor", "0.5", "from 1"]),
        ({"factor": "4"}, ["factor", '"4"']),
        ({"factor": float("inf")}, ["factor", "Infinity"]),
        ({"original_max_position_embeddings": TRAINED + 1}, ["original_max_position_embeddings", "262145", "262144"]),
        ({"original_max_position_embeddings": 0}, ["original_max_position_embeddings", "0"]),
        ({"original_max_position_embeddings": 4096.5}, ["original_max_position_embeddings", "4096.5"]),
        ({"original_max_position_embeddings": 32768}, ["max_position_embeddings", "262144", "131072", "factor (4)"]),
        ({"beta_fast": 0.5}, ["beta_fast", "beta_slow (1)"]),
        ({"beta_slow": 40}, ["beta_slow", "beta_fast (32)"]),
        ({"beta_fast": -1}, ["beta_fast", "-1"]),
        ({"mscale": 1.0}, ["mscale_all_dim", "missing", "mscale"]),
        ({"mscale_all_dim": 1.0}, ["mscale", "missing", "remove mscale_all_dim"]),
        ({"mscale": 0, "mscale_all_dim": 1.0}, ["mscale", "above 0"]),
        ({"attention_factor": 0}, ["attention_factor", "0"]),
        ({"attention_factor": "1.1"}, ["attention_factor", '"1.1"']),
        ({"truncate": 1}, ["truncate", "true or false"]),
        ({"rope_theta": 1}, ["rope_theta", "above 1"]),
        ({"beta_fsat": 16}, ["beta_fsat", "Did you mean beta_fast?"]),
        ({"long_factor": [1.0]}, ["long_factor", "original_max_position_embeddings"]),
        ({"mrope_section": [11, 11, 11]}, ["mrope_section", "32"]),
        ({"type": "default"}, ["rope_type", "rope_parameters.type", "yarn and default"]),
    ],
)
def test_refused(change: Json, expected: list[str]) -> None:
    message = refused({"rope_parameters": CARD | change})
    for part in expected:
        assert part in message


@pytest.mark.parametrize("kind", ["linear", "dynamic", "longrope", "llama3", "proportional", "mrope", "Yarn"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_other_kinds_are_refused_by_name(kind: str, key: str) -> None:
    message = refused({"rope_parameters": without("rope_type") | {key: kind}})
    assert f".{key}" in message and f'"{kind}"' in message and "default or yarn" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ({"rope_scaling": CARD | {"factor": 2.0}}, ["rope_parameters.factor", "rope_scaling.factor", "4.0 and 2.0"]),
        (
            {"rope_parameters": CARD | {"beta_fast": 8}, "rope_scaling": CARD | {"beta_fast": 16}},
            ["beta_fast", "8 and 16"],
        ),
        ({"rope_scaling": CARD | {"rope_type": "default"}}, ["rope_scaling.rope_type", "yarn and default"]),
        ({"original_max_position_embeddings": 131072}, ["original_max_position_embeddings", "262144 and 131072"]),
        ({"rope_theta": 5000.0}, ["rope_theta", "1e+07 and 5000"]),
    ],
)
def test_places_that_disagree_are_refused(text: Json, expected: list[str]) -> None:
    message = refused({"rope_parameters": CARD} | text)
    for part in ("disagree", *expected):
        assert part in message


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ({}, TRAINED),  # the bundled checkpoint's plain embedding is replaced below
        ({"max_position_embeddings": 4 * TRAINED}, 4 * TRAINED),
        ({"rope_parameters": CARD}, 4 * TRAINED),  # as the model cards have it
        ({"rope_parameters": CARD, "max_position_embeddings": 1010000}, 4 * TRAINED),
        ({"rope_parameters": CARD, "max_position_embeddings": 4 * TRAINED}, 4 * TRAINED),
        ({"rope_parameters": CARD | {"factor": 1.0}}, TRAINED),
        ({"rope_parameters": CARD | {"factor": 1.1}}, 288358),
    ],
)
def test_longest_context(text: Json, longest: int) -> None:
    plain = {"rope_parameters": CARD | {"rope_type": "default"}}
    assert read(plain | text).longest_context == longest


def test_an_export_holds_the_stretched_tables(tmp_path: Path) -> None:
    """From config.json to the weights file: the bundled checkpoint with YaRN, its tables as transformers has them."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}

    def change(data: Json) -> None:
        data["text_config"]["rope_parameters"].update(scaling)

    checkpoint = variant(tmp_path / "c", config=change)
    model = ir.load(export(checkpoint, tmp_path / "out") / "model.onnx")
    text = json.loads((checkpoint / "config.json").read_text())["text_config"]
    module = Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(**text))
    tables = module(torch.zeros(1), torch.arange(4096)[None].expand(3, 1, -1))
    for name, table in zip(("cos", "sin"), tables, strict=True):
        stored = model.graph.initializers[f"rotary_emb.{name}"].const_value
        assert stored is not None and stored.shape == (4096, 8)
        assert np.abs(stored.numpy() - table[0, :, :8].numpy()).max() < 1e-6
