"""Mistakes in a drafter's folder and its options: each refused by name, before a byte is written or a weight read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxkit.weights import streamed
from tests.checkpoints import TINY
from tests.dialects import with_sinks
from tests.drafters import Change, drafter, own, sliding, top
from tests.refusals import refused
from tests.tiny_drafter import Json, Tensors, make_config, make_tensors, write


@pytest.fixture(autouse=True)
def no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("a weight was read")

    for name in ("converted", "computed"):
        monkeypatch.setattr(streamed, name, read)
    monkeypatch.setattr(streamed.StreamedTensor, "tofile", read)


def message(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    *options: str,
    target: Path = TINY,
    path_option: str = "drafter_path",
    path: Path | None = None,
) -> str:
    """The message of a refused export; the folder of the output is as it was."""
    output = folder / "base"
    output.mkdir()
    arguments = ["-i", target, "-o", output / "out", "-p", "bf16", "-e", "cuda"]
    text = refused(capsys, *arguments, "--extra_options", f"{path_option}={path or folder / 'd'}", *options)
    assert not list(output.iterdir())
    return text


def gone(*keys: str) -> Change:
    """Remove keys wherever they are."""

    def change(config: Json) -> None:
        for key in keys:
            config.pop(key, None)
            config["dflash_config"].pop(key, None)

    return change


CONFIGS: list[tuple[str, Change, list[str]]] = [
    # what is never guessed
    ("dflash2", gone("target_layer_ids"), ["dflash_config.target_layer_ids", "missing"]),
    ("dspark", gone("mask_token_id"), ["dflash_config.mask_token_id", "missing"]),
    ("dflash2", gone("block_size"), ["dflash_config.block_size", "missing"]),
    ("dspark", gone("rope_parameters"), ["rope_theta", "missing"]),
    ("dflash2", top(rope_parameters={"rope_type": "default"}), ["rope_theta", "missing"]),
    ("dflash2", top(rope_parameters=None, rope_scaling=None), ["rope_theta", "missing"]),
    ("dflash2", gone("conv_kernel_size"), ["conv_kernel_size"]),
    ("dflash2", gone("conv_group_size"), ["conv_group_size"]),
    ("dflash2", gone("selector_rank"), ["selector_rank"]),
    ("dflash2", gone("selector_top_k"), ["selector_top_k"]),
    ("dspark", gone("markov_rank"), ["markov_rank"]),
    ("dspark", gone("rms_norm_eps"), ["rms_norm_eps"]),
    ("dspark", gone("vocab_size"), ["vocab_size"]),
    # taps
    ("dflash2", own(target_layer_ids=[]), ["target_layer_ids", "[]"]),
    ("dflash2", own(target_layer_ids=[-1, 1, 3]), ["[-1, 1, 3]", "the embedding"]),
    ("dflash2", own(target_layer_ids=[1, 3, 3]), ["[1, 3, 3]", "each once"]),
    ("dflash2", own(target_layer_ids=[1, 3, 8]), ["another target", "8", "0 to 7"]),
    ("dflash2", own(target_layer_ids="1,3,5"), ['"1,3,5"', "list"]),
    ("dflash2", own(target_layer_ids=[1, 3.0, 5]), ["3.0", "list"]),
    # the block
    ("dflash2", own(block_size=1), ["block_size", "from 2"]),
    ("dflash2", own(block_size="8"), ['"8"']),
    ("dspark", own(mask_token_id=640), ["mask_token_id", "640", "up to 639"]),
    ("dspark", own(mask_token_id=-1), ["mask_token_id", "-1"]),
    ("dflash2", own(selector_top_k=641), ["selector_top_k", "641", "up to 640"]),
    ("dflash2", own(selector_top_k=0), ["selector_top_k"]),
    ("dflash2", own(conv_group_size=24), ["conv_group_size", "24", "hidden_size (128)"]),
    # the same key in two places
    ("dflash2", top(block_size=16), ["dflash_config.block_size", "8 and 16"]),
    ("dspark", top(target_layer_ids=[2, 4, 6]), ["dflash_config.target_layer_ids", "[1, 3, 5] and [2, 4, 6]"]),
    ("dspark", top(dspark_config={"markov_rank": 8}), ["dflash_config.markov_rank", "24 and 8"]),
    ("dflash2", top(rope_theta=1e4), ["rope_theta", "1e+06 and 10000"]),
    # windows
    ("dflash2", sliding(7), ["sliding_window", "7", "at least block_size (8)"]),
    ("dflash2", top(layer_types=["sliding_attention"] * 2), ["layer_types", "use_sliding_window"]),
    ("dflash2", top(layer_types=["sliding_attention"] * 2, use_sliding_window=True), ["sliding_window", "missing"]),
    ("dflash2", top(layer_types=["full_attention"]), ["layer_types", "2 entries"]),
    ("dflash2", top(layer_types=["full_attention", "linear_attention"]), ["linear_attention"]),
    ("dspark", top(layer_types=None, use_sliding_window=True), ["max_window_layers", "missing"]),
    ("dspark", top(is_causal="no"), ["is_causal", '"no"']),
    # another target
    ("dflash2", top(num_target_layers=12), ["num_target_layers", "12", "8, as the target has"]),
    ("dflash2", top(target_hidden_size=256), ["target_hidden_size", "256", "128"]),
    ("dspark", top(vocab_size=768), ["vocab_size", "768, 128 more than the target's 640", "resize"]),
    ("dflash2", top(vocab_size=639), ["vocab_size", "639, 1 fewer than the target's 640", "resize"]),
    ("dspark", top(hidden_size=256), ["hidden_size", "256", "128"]),
    # what is not built
    ("dflash2", top(attention_bias=True), ["missing (8)", "layers.0.self_attn.o_proj.bias"]),
    ("dflash2", top(hidden_act="gelu"), ["hidden_act", "gelu", "silu"]),
    ("dspark", own(attention_sink_bias=True), ["attention_sink_bias"]),
    ("dspark", own(use_swa=True), ["swa_window_size", "missing"]),
    ("dspark", top(draft_vocab_size=320), ["draft_vocab_size", "320"]),
    ("dspark", top(is_neox_style=False), ["is_neox_style"]),
    ("dspark", top(sample_from_anchor=False, shift_label=True), ["sample_from_anchor", "shift_label"]),
    ("dspark", top(text_config={"head_dim": 64}), ["text_config.head_dim", "32 and 64"]),
    ("dflash2", own(selector_vocab_size=512), ["selector_vocab_size", "512", "640"]),
    (
        "dspark",
        top(speculators_config={"proposal_methods": [{"speculative_tokens": 15}]}, sample_from_anchor=True),
        ["speculative_tokens", "block_size", "15 and 8"],
    ),
    ("dspark", top(quantization_config={"quant_method": "fp8"}), ["quantization_config"]),
    ("dspark", top(speculators_model_type="dflash2"), ["speculators_model_type", "dflash2 and dspark"]),
    ("dspark", top(speculators_model_type="dspark"), ["sample_from_anchor", "speculative_tokens"]),
    ("dspark", top(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), ["linear", "yarn"]),
    ("dspark", own(markov_head_type="rnn"), ["markov_head_type", "rnn"]),
    ("dspark", own(markov_head_type="gatd"), ["markov_head_type", "gatd"]),
]


@pytest.mark.parametrize(("kind", "change", "expected"), CONFIGS, ids=[f"{i}" for i in range(len(CONFIGS))])
def test_config(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, change: Change, expected: list[str]
) -> None:
    """Changed after the tensors were made, so that only the configuration is at fault."""
    drafter(tmp_path / "d", kind, after=change)
    text = message(capsys, tmp_path)
    for part in expected:
        assert part in text


def without(*names: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return change


def extra(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: np.zeros(shape, ml_dtypes.bfloat16)})


def only(name: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        tensors.clear()
        tensors[name] = np.zeros(1, ml_dtypes.bfloat16)

    return change


def turned(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: np.ascontiguousarray(tensors[name].T)})


TENSORS: list[tuple[str, Callable[[Tensors], object], list[str]]] = [
    ("dflash2", without("layers.1.self_attn.k_norm.weight"), ["missing (1)", "layers.1.self_attn.k_norm.weight"]),
    ("dflash2", without("layers.0.mlp_conv.base_kernel"), ["missing (1)", "layers.0.mlp_conv.base_kernel"]),
    ("dflash2", without("candidate_selector.successor_codebook"), ["candidate_selector.successor_codebook"]),
    ("dspark", without("markov_head.markov_w2.weight"), ["missing (1)", "markov_head.markov_w2.weight"]),
    ("dspark", without("fc.weight"), ["missing (1)", "fc.weight"]),
    ("dflash2", extra("layers.0.self_attn.q_proj.bias", 192), ["read by nothing (1)", "q_proj.bias"]),
    ("dspark", extra("layers.2.input_layernorm.weight", 128), ["read by nothing (1)", "layers.2.input_layernorm"]),
    ("dspark", extra("lm_head.weight", 320, 128), ["lm_head.weight: [320, 128], not [640, 128]"]),
    ("dflash2", extra("d2t", 640), ["draft_vocab_size", "d2t"]),
    ("dflash2", turned("fc.weight"), ["fc.weight: [384, 128], not [128, 384]"]),
    ("dspark", turned("markov_head.markov_w2.weight"), ["markov_w2.weight: [24, 640], not [640, 24]"]),
    ("dspark", extra("fc.weight", 128, 256), ["fc.weight: [128, 256], not [128, 384]"]),
    ("dflash2", extra("layers.0.attention_conv.base_kernel", 2, 3, 128), ["base_kernel: [2, 3, 128], not [2, 2, 128]"]),
    ("dflash2", extra("layers.0.self_attn.q_proj.weight", 128, 128), ["q_proj.weight: [128, 128], not [192, 128]"]),
    ("dspark", extra("confidence_head.proj.weight", 1, 77), ["confidence_head", "[1, 77]", "[1, 128] or [1, 152]"]),
    ("dspark", extra("confidence_head.proj.weight", 1, 128), ["confidence_head", "[1, 128]"]),
    (
        "dflash2",
        lambda tensors: tensors.update({"fc.weight": np.zeros((128, 384), np.int8)}),
        ["packed", "fc.weight"],
    ),
    # another kind
    ("dspark", extra("prefix_gru.weight_ih_l0", 8, 8), ["Domino", "prefix_gru.weight_ih_l0"]),
    ("dspark", extra("midlayer.self_attn.q_proj.weight", 8, 8), ["EAGLE3"]),
    ("dspark", without("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"), ["missing (2)", "markov_w1"]),
    ("dspark", only("a"), ["no drafter", "a"]),
    # the Markov head
    ("dspark", extra("markov_head.joint_proj.weight", 72, 176), ["rnn", "joint_proj"]),
    ("dspark", extra("markov_head.gate_proj.weight", 24, 152), ["gated", "vanilla"]),
]


@pytest.mark.parametrize(("kind", "change", "expected"), TENSORS, ids=[f"{i}" for i in range(len(TENSORS))])
def test_tensors(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    kind: str,
    change: Callable[[Tensors], object],
    expected: list[str],
) -> None:
    drafter(tmp_path / "d", kind, tensors=change)
    text = message(capsys, tmp_path)
    for part in expected:
        assert part in text


def test_a_declared_confidence_head_that_is_not_stored(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drafter(tmp_path / "d", "dspark", after=own(enable_confidence_head=True))
    assert "confidence_head.proj.weight" in message(capsys, tmp_path)


@pytest.mark.parametrize(("option", "kind"), [("dflash2_path", "dspark"), ("dspark_path", "dflash2")])
def test_the_other_kind(capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, kind: str) -> None:
    drafter(tmp_path / "d", kind)
    text = message(capsys, tmp_path, path_option=option)
    assert {"dspark": "a DSpark drafter", "dflash2": "a DFlash 2 drafter"}[kind] in text and f"{kind}_path=" in text


def test_the_target_in_the_drafters_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "a target model" in message(capsys, tmp_path, path=TINY)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("nowhere", "does not exist"), ("empty", "no config.json"), ("d/config.json", "not a folder")],
)
def test_the_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path, path: str, expected: str) -> None:
    drafter(tmp_path / "d", "dspark")
    (tmp_path / "empty").mkdir()
    text = message(capsys, tmp_path, path=tmp_path / path)
    assert expected in text and "drafter_path" in text


def test_no_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drafter(tmp_path / "d", "dspark")
    (tmp_path / "d" / "model.safetensors").rename(tmp_path / "d" / "weights.safetensors")
    assert "weights.safetensors" in message(capsys, tmp_path)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("dflash2", ["dflash2_num_draft_tokens=8"], ["8", "at most 7", "block_size is 8"]),
        ("dspark", ["dspark_num_draft_tokens=9"], ["9", "at most 8"]),
        ("dspark", ["dspark_num_draft_tokens=1"], ["'1'", "from 2"]),
        ("dflash2", ["dflash2_num_draft_tokens=0"], ["'0'"]),
        ("dspark", ["dspark_top_k=0"], ["'0'"]),
        ("dspark", ["dspark_top_k=641"], ["641", "1 to 640"]),
        ("dspark", ["dflash2_num_draft_tokens=3"], ["dflash2_num_draft_tokens", "DSpark"]),
        ("dflash2", ["dspark_top_k=3"], ["dspark_top_k", "DFlash 2"]),
        ("dflash2", ["max_draft_tokens=5", "dflash2_num_draft_tokens=4"], ["max_draft_tokens=5", "1 to 4"]),
        ("dflash2", ["state_update_capacity=0"], ["state_update_capacity=0", "7 to 8"]),
        ("dflash2", ["state_update_capacity=3"], ["state_update_capacity=3", "7 to 8"]),
        ("dflash2", ["state_update_capacity=3", "max_draft_tokens=4"], ["state_update_capacity=3"]),
        ("dflash2", ["use_paged_attention=false"], ["use_paged_attention=false with drafter_path"]),
        ("dspark", ["prefix_caching=true"], ["prefix_caching=true", "DSpark"]),
        # taps: the layers' ids unchanged, another order, some of them
        ("dflash2", ["aux_hidden_state_layers=1,3,5"], ["1, 3, 5", "2, 4, 6", "enter the layers after them"]),
        ("dflash2", ["aux_hidden_state_layers=4,2,6"], ["4, 2, 6", "2, 4, 6, in this order"]),
        ("dspark", ["aux_hidden_state_layers=2,4"], ["2, 4, 6"]),
        ("dspark", ["dspark_path=x"], ["drafter_path and dspark_path", "one drafter"]),
    ],
)
def test_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, options: list[str], expected: list[str]
) -> None:
    drafter(tmp_path / "d", kind)
    text = message(capsys, tmp_path, *options)
    for part in expected:
        assert part in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["dspark_top_k=4"], "dspark_top_k without a drafter"),
        (["dflash2_num_draft_tokens=4", "use_paged_attention=true"], "dflash2_num_draft_tokens without a drafter"),
        (["dflash2_path=d", "dspark_top_k=4"], "dspark_top_k with dflash2_path"),
        (["dflash2_path=d", "dspark_path=d"], "dflash2_path and dspark_path"),
        (["drafter_path="], "drafter_path="),
        (["draft_path=d"], "Did you mean drafter_path?"),
    ],
)
def test_options_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], expected: str) -> None:
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options", *options]
    assert expected in refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_pages_smaller_than_the_tile_of_sinks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = make_config("dflash2")
    tensors = make_tensors(config)
    with_sinks(config, tensors)
    write(tmp_path / "d", config, tensors)
    text = message(capsys, tmp_path, "paged_block_size=128")
    for part in ("paged_block_size=128", "sinks", "power of two from 256", "32 wide"):
        assert part in text


@pytest.mark.parametrize(("precision", "provider"), [("fp32", "cpu")])
def test_precision(capsys: pytest.CaptureFixture[str], tmp_path: Path, precision: str, provider: str) -> None:
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", precision, "-e", provider]
    text = refused(capsys, *arguments, "--extra_options", "dflash2_path=d")
    assert "dflash2_path" in text and "bf16 or fp16 with -e cuda" in text


def test_the_output_in_the_drafters_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drafter(tmp_path / "d", "dspark")
    before = sorted((tmp_path / "d").iterdir())
    arguments = ["-i", TINY, "-o", tmp_path / "d", "-p", "bf16", "-e", "cuda"]
    refused(capsys, *arguments, "--extra_options", f"drafter_path={tmp_path / 'd'}")
    assert sorted((tmp_path / "d").iterdir()) == before
