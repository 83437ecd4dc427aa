"""A target's config as a closed world: what is refused, what is noted, and norms in another convention."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.qwen35.config import read_target_config
from builder.qwen35.keys import KEYS
from draftsmith.validation.dense_session import DenseSession
from draftsmith.validation.reference import load_reference
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Use
from tests.checkpoints import TINY, Json, Tensors, text_only, text_only_names, variant
from tests.refusals import refused_checkpoint
from tests.runtime import export, random_ids

CONFIG: Json = json.loads((TINY / "config.json").read_text())


def read(change: Callable[[Json], object], *, alone: bool = False) -> Any:
    data: Json = json.loads(json.dumps(CONFIG))
    if alone:
        text_only(data)
    change(data)
    return read_target_config(JsonObject(data, "config.json"))


def text(**keys: object) -> Callable[[Json], object]:
    return lambda data: data["text_config"].update(keys)


def top(**keys: object) -> Callable[[Json], object]:
    return lambda data: data.update(keys)


def moved(key: str) -> Callable[[Json], object]:
    return lambda data: data.update({key: data["text_config"].pop(key)})


REFUSED: list[tuple[Callable[[Json], object], list[str]]] = [
    (text(attention_bais=True), ["text_config.attention_bais", "Did you mean attention_bias?"]),
    (text(my_scale=2.0), ["text_config.my_scale", "2.0"]),
    (text(attention_bias=True), ["text_config.attention_bias", "biases", "false"]),
    (text(attention_bias=0), ["text_config.attention_bias", "0"]),
    (text(attn_output_gate=False), ["attn_output_gate", "true"]),
    (text(output_gate_type="sigmoid"), ["output_gate_type", "sigmoid", "swish"]),
    (text(num_experts=8), ["num_experts", "mixture of experts"]),
    (text(mlp_only_layers=[0]), ["mlp_only_layers"]),
    (text(use_sliding_window=True), ["use_sliding_window"]),
    (text(sliding_window=128), ["sliding_window"]),
    (text(hidden_act="gelu"), ["hidden_act", "gelu", "silu"]),
    (text(full_attention_interval=2), ["layer_types", "full_attention_interval"]),
    (text(quantization_config={"quant_method": "fp8"}), ["quantization_config", "fp8"]),
    (top(quantization_config={"quant_method": "awq"}), ["quantization_config", "awq"]),
    (top(rms_norm_eps=1e-5), ["config.json: rms_norm_eps and config.json: text_config.rms_norm_eps"]),
    (top(hidden_size=256), ["config.json: hidden_size", "256 and 128"]),
    (top(attention_bias=True), ["config.json: attention_bias"]),
    (top(rope_theta=1e4), ["config.json: rope_theta", "nothing"]),
    (moved("mtp_num_hidden_layers"), ["mtp_num_hidden_layers", "1 and nothing"]),
    (moved("rms_norm_eps"), ["rms_norm_eps", "nothing"]),
    (lambda data: (data["text_config"].pop("hidden_act"), data.update(hidden_act="gelu")), ["hidden_act", "gelu"]),
    (top(attention_bais=True), ["config.json: attention_bais", "Did you mean attention_bias?"]),
    (top(attention_sinks=[1]), ["config.json: attention_sinks", "keys that Draftsmith honours"]),
    (text(head_dim=20), ["text_config.head_dim", "20", "multiple of 16"]),
    (text(head_dim=33), ["text_config.head_dim", "33", "multiple of 16"]),
    (text(head_dim=40), ["text_config.head_dim", "40", "multiple of 16"]),
    (text(head_dim=48), ["rope_parameters.partial_rotary_factor", "0.25", "multiple of 16"]),
    (
        text(rope_parameters={"rope_theta": 1e7, "partial_rotary_factor": 0.125}),
        ["rope_parameters.partial_rotary_factor", "multiple of 16"],
    ),
    (text(rope_parameters={"rope_type": "default", "rope_theta": 1e7, "factr": 4}), ["factr"]),
    (text(rope_parameters={"rope_theta": 1e7, "factor": 4.0}), ["rope_parameters.factor", "rope_type"]),
    (
        text(rope_parameters={"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [8, 8]}),
        ["mrope_section"],
    ),
    (
        text(rope_parameters={"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}),
        ["mrope_section", "half of the rotated part (8)"],
    ),
]


@pytest.mark.parametrize(("change", "expected"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused(change: Callable[[Json], object], expected: list[str]) -> None:
    with pytest.raises(ExportError) as caught:
        read(change)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        text(num_experts=0, mlp_only_layers=[], use_sliding_window=False, sliding_window=None),
        text(mamba_ssm_dtype="float32", output_gate_type="swish", use_cache=False, temperature=0.7),
        text(attention_bias=None, attn_output_gate=None),
        top(hidden_size=128, rms_norm_eps=1e-6, language_model_only=False),
        top(tie_word_embeddings=None),
    ],
)
def test_without_effect(change: Callable[[Json], object]) -> None:
    assert read(change) == read(lambda _: None)


def test_a_key_that_is_not_known_is_noted() -> None:
    """One rule for the top level and for text_config: refused where it looks as if it shaped the graph."""
    assert read(top(merged_by="me")).notes == ("config.json: merged_by is not known and has no effect.",)
    assert read(top(merged_by="me"), alone=True).notes == ("config.json: merged_by is not known and has no effect.",)
    assert read(text(merged_by="me")).notes == ("config.json: text_config.merged_by is not known and has no effect.",)
    (note,) = read(text(use_new_attention=False)).notes  # asks for nothing
    assert "use_new_attention" in note
    with pytest.raises(ExportError, match="not known"):
        read(top(attention_bais=True), alone=True)


def test_no_hidden_act_is_silu() -> None:
    """Nothing else is built, and producers that hard-code it leave it out."""
    for change in (moved("hidden_act"), lambda data: data["text_config"].pop("hidden_act")):
        assert read(change) == read(lambda _: None)


# --- a text-only checkpoint whose text model's keys are nested, as programs leave them that take one out of another ---


def nested(architecture: str = "Qwen3_5ForCausalLM", **keys: Any) -> Callable[[Json], object]:
    def change(data: Json) -> None:
        kept = {"text_config": data["text_config"], "model_type": data["model_type"]}
        data.clear()
        data.update(kept, architectures=[architecture], **keys)

    return change


@pytest.mark.parametrize(
    "change",
    [nested(), nested("Qwen3_5TextForCausalLM"), nested(hidden_size=128, rms_norm_eps=1e-6, tie_word_embeddings=False)],
)
def test_nested(change: Callable[[Json], object]) -> None:
    found, flat = read(change), read(lambda _: None, alone=True)
    assert replace(found, architecture=flat.architecture) == flat


def test_the_flat_one_of_another_name() -> None:
    assert read(top(architectures=["Qwen3_5TextForCausalLM"]), alone=True).hidden_size == 128


@pytest.mark.parametrize(
    "keys", [{"rms_norm_eps": 1e-5}, {"num_attention_heads": 8}, {"rope_theta": 1e4}, {"tie_word_embeddings": True}]
)
def test_nested_and_beside_it(keys: dict[str, Any]) -> None:
    """transformers takes the nested ones, other programs those of the top."""
    with pytest.raises(ExportError, match="disagree") as caught:
        read(nested(**keys))
    (key,) = keys
    assert f"config.json: {key} and config.json: text_config.{key}" in str(caught.value)


@pytest.mark.parametrize("architecture", ["Qwen3_5ForCausalLM", "Qwen3_5TextForCausalLM"])
def test_nested_gives_what_transformers_does(architecture: str, tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", config=nested(architecture), tensors=text_only_names)
    folder = export(checkpoint, tmp_path / "out", "prune_lm_head=false")
    ids = random_ids(3, 1, 12)
    with torch.no_grad():
        wanted = load_reference(checkpoint)(input_ids=torch.from_numpy(ids)).logits.numpy()
    assert np.abs(DenseSession(folder / "model.onnx", 1)(ids)["logits"] - wanted).max() < 2e-5


def test_the_note_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = variant(tmp_path / "c", config=top(merged_by="me"))
    export(checkpoint, tmp_path / "out")
    assert "merged_by is not known" in capsys.readouterr().out


def plus_one(tensors: Tensors) -> None:
    """As a converter for another program writes the norms."""
    for name in tensors:
        if "norm.weight" in name and "linear_attn" not in name:
            tensors[name] = (tensors[name].float() + 1).to(tensors[name].dtype)


def test_norms_with_their_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", tensors=plus_one)
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "input_layernorm.weight" in message and "1 added already" in message


def test_a_gain_below_0_does_not_hide_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        plus_one(tensors)
        tensors["model.language_model.layers.0.input_layernorm.weight"][3] = -0.01

    assert "1 added already" in refused_checkpoint(capsys, variant(tmp_path / "c", tensors=change), tmp_path)


def test_norms_around_0_with_large_ones_among_them(tmp_path: Path) -> None:
    """A few large values lift the mean, not the bulk."""

    def change(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("layernorm.weight"):
                tensors[name][:20] = 30.0

    export(variant(tmp_path / "c", tensors=change), tmp_path / "out")


def test_an_mtp_without_weights_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def without(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("mtp.")]:
            del tensors[name]

    export(variant(tmp_path / "c", tensors=without), tmp_path / "out")
    assert "config.json declares one, the checkpoint has no mtp.* tensors" in capsys.readouterr().out


def test_the_table() -> None:
    """Each honoured key says which field it decides; each refused one what it would change."""
    fields = set(read(lambda _: None).__dataclass_fields__)
    for key in KEYS.values():
        assert key.says
        if key.use is Use.HONOURED and key.name != "text_config":
            assert key.fields and set(key.fields) <= fields
        else:
            assert not key.fields
