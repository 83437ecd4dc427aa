"""What producers disagree about, each convention with a test per producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from drafters.checkpoint import conventions
from drafters.checkpoint.config import DSpark, LayerAttention
from drafters.checkpoint.dialects import DIALECTS, recognise
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.sections import ConfigSections
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject
from tests.dialects import PAIRS, WRITERS, family, original, written
from tests.tiny_drafter import Json

FULL, SLIDING = "full_attention", "sliding_attention"
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}


def sections(config: Json, producer: str = "SpecForge", kind: str = "dspark") -> ConfigSections:
    return ConfigSections(JsonObject(config, "config.json"), BY_NAME[producer], Family(kind))


def of(producer: str, kind: str) -> ConfigSections:
    """The keys of one of the fixtures."""
    config, _ = written(producer, kind)
    return sections(config, WRITERS[producer][1], family(kind))


def message(call: Callable[[], object]) -> str:
    with pytest.raises(ExportError) as caught:
        call()
    return str(caught.value)


# --- per producer ---


@pytest.mark.parametrize(("producer", "kind"), PAIRS)
def test_each_convention(producer: str, kind: str) -> None:
    """Taps, block, mask, row alignment, attention, rotary embedding, vocabulary."""
    keys = of(producer, kind)
    assert conventions.target_layers(keys) == (1, 3, 5)
    assert conventions.block_size(keys, 8 if producer == "TorchSpec" else None) == 8
    assert conventions.mask_token(keys, 640) == 630
    dialect = BY_NAME[WRITERS[producer][1]]
    assert conventions.anchor_predicts(keys, dialect, Family(family(kind)), 8) == (family(kind) == "dspark")
    assert conventions.layers(keys, 8) == (LayerAttention(None, False),) * 2
    assert conventions.layer_kinds(keys) == (FULL, FULL)
    rotary = conventions.rotary(keys, 32, (FULL, FULL))
    assert (rotary.theta, rotary.dim, rotary.yarn) == (1e6, 32, None)
    assert conventions.draft_vocabulary(keys, 640, mapped=False) is None


@pytest.mark.parametrize(("producer", "kind"), PAIRS)
def test_the_producer_is_told_by_the_config_alone_or_by_a_name(producer: str, kind: str) -> None:
    config, tensors = written(producer, kind)
    dialect, reason = recognise(JsonObject(config, "config.json"), list(tensors))
    assert dialect.name == WRITERS[producer][1] and reason


# --- taps ---


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"target_layer_ids": [1, 3]}, (1, 3)),
        ({"target_layer_ids": [5, 1]}, (5, 1)),
        ({"aux_hidden_state_layer_ids": [2, 4]}, (1, 3)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 9]}, (0, 8)),
        ({"target_layer_ids": [1, 3], "eagle_aux_hidden_state_layer_ids": [2, 4]}, (1, 3)),
        ({"target_layer_ids": None, "dspark_config": {"target_layer_ids": [7]}}, (7,)),
    ],
)
def test_taps(keys: Json, expected: tuple[int, ...]) -> None:
    assert conventions.target_layers(sections(keys)) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["target_layer_ids", "missing"]),
        ({"aux_hidden_state_layer_ids": [0, 2]}, ["aux_hidden_state_layer_ids", "the embedding"]),
        ({"target_layer_ids": [-1, 2]}, ["target_layer_ids", "the embedding"]),
        ({"target_layer_ids": [1], "aux_hidden_state_layer_ids": [1]}, ["target_layer_ids and", "aux_hidden"]),
        ({"target_layer_ids": [1], "dflash_config": {"target_layer_ids": [2]}}, ["dflash_config.target_layer_ids"]),
        ({"target_layer_ids": True}, ["target_layer_ids", "list"]),
        ({"aux_hidden_state_layer_ids": [1, "2"]}, ["aux_hidden_state_layer_ids", "list"]),
    ],
)
def test_wrong_taps(keys: Json, expected: list[str]) -> None:
    text = message(lambda: conventions.target_layers(sections(keys)))
    assert all(part in text for part in expected)


def test_torchspec_counts_taps_where_others_count_layers() -> None:
    keys = {"target_layer_ids": [1, 3], "num_target_layers": 3, "target_num_hidden_layers": 8}
    assert "num_target_layers" in message(lambda: conventions.target_layers(sections(keys, "TorchSpec", "dflash")))
    found = sections(keys | {"num_target_layers": 2}, "TorchSpec", "dflash")
    assert conventions.target_layers(found) == (1, 3) and found.integer("num_target_layers") == 8


# --- row alignment ---

SPECULATORS = {"speculators_config": {"proposal_methods": [{"speculative_tokens": 7}]}}


@pytest.mark.parametrize(
    ("producer", "kind", "keys", "expected"),
    [
        ("SpecForge", "dspark", {}, True),
        ("DeepSpec", "dspark", {}, True),
        ("NVIDIA ModelOpt", "dspark", {"dflash_config": {"shift_label": True}}, True),
        ("NVIDIA ModelOpt", "dspark", {"dflash_config": {"shift_label": False}}, False),
        ("NVIDIA ModelOpt", "dflash", {"dflash_config": {"shift_label": True}}, False),
        ("vLLM speculators", "dspark", {"sample_from_anchor": False}, False),
        ("vLLM speculators", "dspark", {"sample_from_anchor": True} | SPECULATORS, True),
        ("vLLM speculators", "dspark", SPECULATORS, False),
        ("vLLM speculators", "dspark", {"speculators_config": {"proposal_methods": [{"speculative_tokens": 8}]}}, True),
        ("vLLM speculators", "dflash", {}, False),
        ("vLLM speculators", "dflash", {"sample_from_anchor": True}, True),
        ("vLLM speculators", "dflash2", {"sample_from_anchor": True}, True),
        ("z-lab / Inco", "dflash2", {"sample_from_anchor": False}, False),
    ],
)
def test_the_anchors_row(producer: str, kind: str, keys: Json, expected: bool) -> None:
    found = sections(keys, producer, kind)
    assert conventions.anchor_predicts(found, BY_NAME[producer], Family(kind), 8) is expected


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"sample_from_anchor": True, "shift_label": False}, "dspark"),
        ({"sample_from_anchor": "yes"}, "dspark"),
        ({"speculators_config": {"proposal_methods": [{"speculative_tokens": 4}]}}, "dspark"),
        ({"speculators_config": {"proposal_methods": 4}}, "dspark"),
        ({"speculators_config": {"proposal_methods": [{"speculative_tokens": "8"}]}}, "dspark"),
        ({}, "dspark"),
    ],
)
def test_a_row_alignment_that_is_not_told(keys: Json, kind: str) -> None:
    found = sections(keys, "vLLM speculators", kind)
    text = message(lambda: conventions.anchor_predicts(found, BY_NAME["vLLM speculators"], Family(kind), 8))
    assert "sample_from_anchor" in text or "proposal_methods" in text


# --- windows ---


def attention(keys: Json, block: int = 8, producer: str = "SpecForge") -> tuple[Any, ...]:
    layers = conventions.layers(sections({"num_hidden_layers": 2} | keys, producer, "dflash"), block)
    return tuple((layer.window, layer.causal) for layer in layers)


SLIDES = {"layer_types": [SLIDING, FULL], "sliding_window": 64}


@pytest.mark.parametrize(
    ("producer", "keys", "expected"),
    [
        ("z-lab / Inco", SLIDES, ((64, True), (None, False))),
        ("z-lab / Inco", SLIDES | {"is_causal": False}, ((64, False), (None, False))),
        ("z-lab / Inco", SLIDES | {"is_causal": True}, ((64, True), (None, True))),
        ("SpecForge", SLIDES | {"use_sliding_window": True, "max_window_layers": 28}, ((64, True), (None, False))),
        ("NeMo Automodel", SLIDES | {"dflash_config": {"causal": False}}, ((64, False), (None, False))),
        ("NeMo Automodel", {"dflash_config": {"dflash_query_causal": True}}, ((None, True), (None, True))),
        ("vLLM speculators", {"transformer_layer_config": SLIDES}, ((64, True), (None, False))),
        ("vLLM speculators", SLIDES | {"sliding_window_non_causal": True}, ((64, False), (None, False))),
        ("NVIDIA ModelOpt", {"use_swa": True, "swa_window_size": 32}, ((32, False), (32, False))),
        ("NVIDIA ModelOpt", {"use_swa": True, "swa_window_size": 32, "causal": True}, ((32, True), (32, True))),
        ("NVIDIA ModelOpt", {"use_swa": False, "swa_window_size": 32}, ((None, False), (None, False))),
        ("DeepSpec", {"layer_types": [FULL, FULL]}, ((None, False), (None, False))),
        ("z-lab / Inco", {"dflash_config": {"causal_head": True}}, ((None, True), (None, True))),
        ("z-lab / Inco", {"is_causal": False, "sliding_window_non_causal": False}, ((None, False), (None, False))),
        ("TorchSpec", {}, ((None, False), (None, False))),
        (
            "SpecForge",
            {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 9},
            ((None, False), (9, True)),
        ),
    ],
)
def test_windows(producer: str, keys: Json, expected: object) -> None:
    assert attention(keys, producer=producer) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"use_swa": True}, "swa_window_size"),
        ({"swa_window_size": 32}, "use_swa"),
        ({"use_swa": True, "swa_window_size": 7}, "swa_window_size"),
        ({"use_swa": True, "swa_window_size": 7, "causal": True}, "swa_window_size"),
        (SLIDES | {"use_swa": True, "swa_window_size": 64}, "use_swa"),
        (SLIDES | {"use_sliding_window": False}, "use_sliding_window"),
        (SLIDES | {"sliding_window": None}, "sliding_window"),
        (SLIDES | {"is_causal": True, "causal": False}, "causal"),
        (SLIDES | {"is_causal": True, "sliding_window_non_causal": True}, "sliding_window_non_causal"),
        (SLIDES | {"is_causal": False, "sliding_window_non_causal": False}, "sliding_window_non_causal"),
        (SLIDES | {"causal": False, "sliding_window_non_causal": False}, "sliding_window_non_causal"),
        (SLIDES | {"is_causal": False, "sliding_window": 7}, "sliding_window"),
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": [FULL, "chunked_attention"]}, "layer_types"),
        ({"use_sliding_window": True}, "max_window_layers"),
    ],
)
def test_windows_that_cannot_be(keys: Json, expected: str) -> None:
    assert expected in message(lambda: attention(keys))


def test_a_causal_window_may_be_smaller_than_the_block() -> None:
    assert attention(SLIDES | {"sliding_window": 5})[0] == (5, True)


# --- the rest ---


@pytest.mark.parametrize(
    ("option", "keys", "expected"), [(None, {"block_size": 7}, 7), (16, {}, 16), (7, {"block_size": 7}, 7)]
)
def test_block_size(option: int | None, keys: Json, expected: int) -> None:
    assert conventions.block_size(sections(keys), option) == expected


def test_speculators_default_block_is_its_writers_only() -> None:
    assert conventions.block_size(sections({}, "vLLM speculators"), None) == 8
    for producer in BY_NAME:
        if producer != "vLLM speculators":
            found = sections({}, producer)
            assert "block_size" in message(lambda found=found: conventions.block_size(found, None))  # type: ignore[misc]


def test_speculators_defaults_are_named() -> None:
    found = sections({"speculators_model_type": "dspark"}, "vLLM speculators")
    assert (found.integer("markov_rank"), found.number("rms_norm_eps"), found.integer("head_dim")) == (256, 1e-6, 128)
    assert found.number("rope_theta") == 10000 and "the default of vLLM speculators" in found.place("rope_theta")
    assert "selector_rank" not in found and "selector_rank" in sections({}, "vLLM speculators", "dflash2")


def test_a_default_does_not_contradict_a_section() -> None:
    for rope in ({"rope_theta": 1e6}, {FULL: {"rope_theta": 1e6}}):
        found = sections({"transformer_layer_config": {"rope_parameters": rope}}, "vLLM speculators")
        assert conventions.rotary(found, 32, (FULL,)).theta == 1e6


@pytest.mark.parametrize(
    ("rope", "kinds", "expected"),
    [
        ({FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}, (FULL, SLIDING), ["full_attention and", "sliding"]),
        ({FULL: {"rope_theta": 1e6}}, (FULL, SLIDING), ["sliding_attention"]),
        ({FULL: {"rope_theta": 1e6}}, (SLIDING,), ["rope_parameters", "sliding_attention"]),
        ({FULL: {"rope_theta": 1e6}, "rope_theta": 1e6}, (FULL,), ["rope_parameters"]),
        ({FULL: 5}, (FULL,), ["full_attention"]),
    ],
)
def test_rotary_embeddings_by_kind_of_layer(rope: Json, kinds: tuple[str, ...], expected: list[str]) -> None:
    found = sections({"rope_parameters": rope, "max_position_embeddings": 64})
    text = message(lambda: conventions.rotary(found, 32, kinds))
    assert all(part in text for part in expected)


def test_the_entry_of_the_kind_in_use_counts() -> None:
    found = sections({"rope_parameters": {FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}})
    assert conventions.rotary(found, 32, (SLIDING, SLIDING)).theta == 1e4


@pytest.mark.parametrize(
    ("size", "mapped", "expected"), [(640, False, None), (None, False, None), (704, False, 704), (320, True, 320)]
)
def test_vocabulary(size: int | None, mapped: bool, expected: int | None) -> None:
    assert conventions.draft_vocabulary(sections({"draft_vocab_size": size}), 640, mapped) == expected


@pytest.mark.parametrize(("size", "mapped"), [(320, False), (704, True), (640, True), (None, True), ("320", True)])
def test_wrong_vocabulary(size: object, mapped: bool) -> None:
    assert "draft_vocab_size" in message(
        lambda: conventions.draft_vocabulary(sections({"draft_vocab_size": size}), 640, mapped)
    )


def test_the_default_of_a_dspark_is_to_predict_from_the_anchor() -> None:
    assert DSpark(8, False).anchor_predicts


def test_fixtures_are_of_one_drafter() -> None:
    layers, own, _ = original("dspark")
    assert layers["num_hidden_layers"] == 2 and own["target_layer_ids"] == [1, 3, 5]
