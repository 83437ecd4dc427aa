"""Mistakes in config.json and generation_config.json, as far as they concern the target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints import PREFIX, Json, variant
from tests.refusals import refused_checkpoint
from tests.runtime import export


def text(**changes: object) -> Callable[[Json], None]:
    """A change of text_config; None removes a key."""

    def change(data: Json) -> None:
        for key, value in changes.items():
            if value is None:
                del data["text_config"][key]
            else:
                data["text_config"][key] = value

    return change


def rope(**changes: object) -> Callable[[Json], None]:
    """A change of rope_parameters; None removes a key."""

    def change(data: Json) -> None:
        parameters = data["text_config"]["rope_parameters"]
        for key, value in changes.items():
            if value is None:
                del parameters[key]
            else:
                parameters[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.update(architectures=["LlamaForCausalLM"]), ["LlamaForCausalLM", "Qwen3_5ForCausalLM"]),
        (lambda data: data.update(architectures=["Qwen3_5MoeForCausalLM"]), ["Qwen3_5MoeForCausalLM"]),
        (lambda data: data.update(architectures=["Qwen4ExpForCausalLM"]), ["Qwen4ExpForCausalLM"]),
        (lambda data: data.update(architectures=[]), ["architectures"]),
        (lambda data: data.update(architectures="Qwen3_5ForCausalLM"), ["architectures", "list of strings"]),
        (lambda data: data.pop("architectures"), ["architectures"]),
        (lambda data: data.pop("text_config"), ["text_config"]),
        (lambda data: data.update(text_config=7), ["text_config"]),
        (lambda data: data.update(quantization_config={"quant_method": "gptq"}), ["quantization_config", "gptq"]),
        (text(hidden_act="gelu"), ["hidden_act", "gelu", "silu"]),
        (text(attention_bias=True), ["attention_bias", "true"]),
        (text(attn_output_gate=False), ["attn_output_gate", "false"]),
        (text(hidden_size=None), ["hidden_size", "missing"]),
        (text(hidden_size=0), ["hidden_size", "0"]),
        (text(hidden_size="128"), ["hidden_size", '"128"']),
        (text(hidden_size=True), ["hidden_size", "true"]),
        (text(hidden_size=128.5), ["hidden_size", "128.5"]),
        (text(head_dim=None), ["head_dim"]),
        (text(vocab_size=[640]), ["vocab_size", "[640]"]),
        (text(rms_norm_eps=0), ["rms_norm_eps"]),
        (text(rms_norm_eps=None), ["rms_norm_eps"]),
        (text(num_key_value_heads=3), ["num_key_value_heads", "3"]),
        (text(linear_num_value_heads=3), ["linear_num_value_heads", "3"]),
        (text(linear_conv_kernel_dim=1), ["linear_conv_kernel_dim"]),
        (text(max_position_embeddings=None), ["max_position_embeddings"]),
        (text(num_hidden_layers=7), ["layer_types", "7 entries"]),
        (text(layer_types=["full_attention"] * 8), ["layer_types"]),
        (text(layer_types=["sliding_attention"] * 8), ["layer_types", "sliding_attention"]),
        (text(layer_types=None, full_attention_interval=None), ["layer_types", "full_attention_interval"]),
        (text(rope_parameters=None), ["rope_theta"]),
        (rope(rope_theta=None), ["rope_theta"]),
        (rope(rope_theta=-1), ["rope_theta", "-1"]),
        (rope(partial_rotary_factor=None), ["partial_rotary_factor"]),
        (rope(partial_rotary_factor=1.5), ["partial_rotary_factor", "1.5"]),
        (rope(partial_rotary_factor=0.26), ["partial_rotary_factor", "0.26"]),
        (rope(rope_type="linear"), ["rope_type", "linear"]),
        (rope(mrope_section=[3, 3, 3]), ["mrope_section", "8"]),
        (rope(mrope_section=8), ["mrope_section"]),
        (text(rope_theta=5000.0), ["rope_theta", "1e+07 and 5000"]),
        (text(eos_token_id="end"), ["eos_token_id", "end"]),
        (text(eos_token_id=[1, -2]), ["eos_token_id"]),
        (text(eos_token_id=640), ["text_config.eos_token_id", "640", "from 0 to 639"]),
        (lambda data: data.update(eos_token_id=[0, 999]), ["config.json: eos_token_id", "999"]),
        (text(pad_token_id=640), ["pad_token_id", "640"]),
        (lambda data: data.update(bos_token_id=2**31), ["bos_token_id", "2147483648"]),
        (lambda data: data.update(tie_word_embeddings="no"), ["tie_word_embeddings"]),
    ],
)
def test_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: Callable[[Json], object], expected: list[str]
) -> None:
    message = refused_checkpoint(capsys, variant(tmp_path / "c", config=change), tmp_path)
    for part in expected:
        assert part in message


def test_fewer_layers_than_tensors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def change(data: Json) -> None:
        data["text_config"]["num_hidden_layers"] = 7
        del data["text_config"]["layer_types"][7:]

    message = refused_checkpoint(capsys, variant(tmp_path / "c", config=change), tmp_path)
    assert f"{PREFIX}layers.7.mlp.up_proj.weight" in message or "layers.7." in message


def test_no_stop_id_anywhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", config=text(eos_token_id=None))
    (checkpoint / "generation_config.json").write_text("{}")
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "generation_config.json: eos_token_id" in message and "that ends a text" in message
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 2}')
    export(checkpoint, tmp_path / "out")


def test_a_key_twice_in_the_generation_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 2, "top_k": 20, "top_k": 40}')
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "stands twice" in message and "top_k" in message and "generation_config.json" in message


@pytest.mark.parametrize(
    "entry",
    [
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_p": 1.5},
        {"do_sample": 1},
        {"no_repeat_ngram_size": -1},
        {"min_length": 1.5},
        {"min_p": 2},
        {"eos_token_id": [2, 640]},
    ],
)
def test_generation_config(capsys: pytest.CaptureFixture[str], tmp_path: Path, entry: Json) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "generation_config.json").write_text(json.dumps(entry))
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert f"generation_config.json: {next(iter(entry))}" in message
