"""A drafter's config and names as a closed world, and the drafters that are known and not taken."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from drafters.checkpoint.config import DrafterConfig, DSpark
from drafters.checkpoint.dialects import KEYS
from drafters.checkpoint.names import common_names
from drafters.checkpoint.reading import read_drafter
from drafters.checkpoint.refused import REFUSED
from onnxkit.errors import ExportError
from onnxkit.key_table import Use
from onnxkit.weights.checkpoint import Checkpoint
from tests.dialects import original, with_reduced_vocabulary, write_as
from tests.drafters import alone, own, top
from tests.test_draft_beyond import folder_of, without_markov
from tests.tiny_drafter import Json, Tensors, make_config, make_tensors, write

ZERO = np.zeros((8, 8), ml_dtypes.bfloat16)
Change = Callable[[Json], object]


def message(folder: Path) -> str:
    with pytest.raises(ExportError) as caught:
        read_drafter(Checkpoint(folder))
    return str(caught.value)


def made(folder: Path, kind: str, *changes: Change, extra: Tensors | None = None) -> Path:
    config = make_config(kind)
    tensors = make_tensors(config) | (extra or {})
    for change in changes:
        change(config)
    write(folder, config, tensors)
    return folder


# --- keys ---


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("dspark", own(markov_rnak=24), ["dflash_config.markov_rnak", "Did you mean markov_rank?"]),
        ("dspark", top(dspark_config={"x": 1}), ["dspark_config.x"]),
        ("dspark", top(transformer_layer_config={"hidden_sise": 1}), ["transformer_layer_config.hidden_sise"]),
        ("dspark", own(dspark_config={}), ["dflash_config.dspark_config"]),
        ("dspark", top(dflash_config=3), ["dflash_config", "object"]),
        ("dspark", top(rope_parameters={"rope_type": "default", "rope_theta": 1e6, "thta": 3}), ["thta"]),
        ("dspark", top(rope_parameters={"rope_theta": 1e6, "factor": 3.0}), ["factor", "rope_type"]),
        ("dspark", top(rope_parameters=[1]), ["rope_parameters", "object"]),
        ("dspark", own(selector_rank=24), ["selector_rank", "DSpark"]),
        ("dflash2", own(markov_rank=24), ["markov_rank", "DFlash 2"]),
        ("dflash2", own(enable_confidence_head=True), ["enable_confidence_head", "confidence_head.proj.weight"]),
        ("dspark", own(use_confidence_head=True), ["use_confidence_head", "confidence_head.proj.weight"]),
        ("dspark", own(markov_rank=0), ["markov_rank"]),
        ("dspark", own(projector_type="dflash"), ["projector_type", "dflash and dspark"]),
        ("dspark", own(attention_mode="mha"), ["attention_mode", "2 key heads"]),
        ("dspark", own(attention_mode="mla"), ["attention_mode", "mla"]),
        ("dspark", own(has_embed_tokens=True), ["has_embed_tokens", "embed_tokens.weight"]),
        ("dspark", top(mlp_bias=True), ["mlp_bias"]),
        ("dspark", top(head_dim=33), ["head_dim", "33", "even"]),
        ("dspark", top(head_dim=1), ["head_dim", "1", "even"]),
        ("dspark", top(linear_attn_config={}), ["linear_attn_config"]),
        ("dspark", top(rope_is_neox_style=False), ["rope_is_neox_style", "neighbouring"]),
        ("dspark", top(num_experts=4), ["num_experts"]),
        ("dspark", top(dtype=16), ["dtype", "string"]),
        ("dspark", top(architectures="DSparkDraftModel"), ["architectures", "list"]),
        ("dspark", top(tie_word_embeddings="no"), ["tie_word_embeddings"]),
        ("dspark", top(draft_vocab_size=320), ["draft_vocab_size", "d2t"]),
    ],
)
def test_refused(tmp_path: Path, kind: str, change: Change, expected: list[str]) -> None:
    text = message(made(tmp_path, kind, change))
    for part in expected:
        assert part in text


def config(folder: Path) -> DrafterConfig:
    return read_drafter(Checkpoint(folder))


def test_keys_without_effect(tmp_path: Path) -> None:
    plain = config(made(tmp_path / "a", "dspark"))
    noise = {key.name: 3 for key in KEYS.values() if key.use is Use.NO_EFFECT}
    noisy = config(made(tmp_path / "b", "dspark", lambda data: data.update(noise | data)))
    assert vars(noisy) == vars(plain)
    in_a_section = config(made(tmp_path / "c", "dspark", own(**noise)))
    assert {**vars(in_a_section), "notes": ()} == {**vars(plain), "notes": ()}


def test_a_key_of_the_top_level_that_is_not_known_is_noted(tmp_path: Path) -> None:
    notes = config(made(tmp_path, "dspark", top(merged_by="me", is_causl=True))).notes
    assert any("merged_by is not known" in note for note in notes)
    assert any("is_causl is not known" in note and "Did you mean is_causal?" in note for note in notes)


def test_other_types_than_declared_are_noted(tmp_path: Path) -> None:
    notes = config(made(tmp_path, "dspark", top(dtype="float32"))).notes
    assert any("config.json says float32, the tensors are BF16" in note for note in notes)


def test_one_bound_for_a_block_is_noted(tmp_path: Path) -> None:
    write_as("speculators", "dspark", tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    data["transformer_layer_config"] |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}
    (tmp_path / "config.json").write_text(json.dumps(data))
    found = config(tmp_path)
    assert any("one bound, 64 positions before the anchor" in note for note in found.notes)
    assert [(layer.window, layer.causal) for layer in found.layers] == [(64, True)] * 2


@pytest.mark.parametrize("names", [None, ["Qwen3ForCausalLM"]])
def test_without_a_markov_head_and_a_name_nothing_tells_what_the_anchor_does(tmp_path: Path, names: object) -> None:
    """DeepSpec's DFlash and a plain one have the same tensors; their rows mean different positions."""
    folder = folder_of(tmp_path, "dspark", without_markov)
    assert config(folder).anchor_predicts
    data = json.loads((folder / "config.json").read_text())
    data |= {"architectures": names} | data.pop("dflash_config")
    (folder / "config.json").write_text(json.dumps(data))
    text = message(folder)
    assert "architectures" in text and "Qwen3DSparkModel" in text and "DFlashDraftModel" in text


@pytest.mark.parametrize("width", [128, 152])
@pytest.mark.parametrize("both", [False, True, None])
def test_the_confidence_heads_width(tmp_path: Path, width: int, both: bool | None) -> None:
    """The hidden state, with the previous token's embedding or without; a key that says which must be right."""
    names = {"confidence_proj.weight": np.zeros((1, width)), "confidence_proj.bias": np.zeros(1)}
    extra = {name: array.astype(ml_dtypes.bfloat16) for name, array in names.items()}
    folder = made(tmp_path, "dspark", own(confidence_head_with_markov=both), extra=extra)
    if both is None or both == (width == 152):
        variant = config(folder).variant
        assert isinstance(variant, DSpark) and variant.confidence_width == width
    else:
        assert "confidence_head_with_markov" in message(folder)


@pytest.mark.parametrize(("kind", "doubted"), [("dflash", True), ("dspark", True), ("dflash2", False)])
def test_a_base_in_doubt_is_noted(tmp_path: Path, kind: str, doubted: bool) -> None:
    """Releases of ModelOpt that have DFlash 2 write the base that they trained with."""
    folder = write_as("ModelOpt", kind, tmp_path)
    assert any("ModelOpt 0.45 to 0.47" in note for note in config(folder).notes) is doubted


@pytest.mark.parametrize("section", ["", "dflash_config"])
def test_a_key_that_stands_twice_in_one_object(tmp_path: Path, section: str) -> None:
    folder = made(tmp_path, "dspark")
    text = (folder / "config.json").read_text()
    text = (
        text.replace('"block_size": 8', '"block_size": 8, "block_size": 7')
        if section
        else text.replace('"head_dim": 32', '"head_dim": 32, "head_dim": 64')
    )
    (folder / "config.json").write_text(text)
    message_ = message(folder)
    assert "stands twice" in message_ and ("block_size" if section else "head_dim") in message_


def test_the_table() -> None:
    """Each honoured key says which field it decides; each other one what becomes of it, and nothing of fields."""
    fields = DrafterConfig.__dataclass_fields__
    for key in KEYS.values():
        assert key.says
        if key.use is Use.HONOURED and not key.name.endswith("_config"):
            assert key.fields and set(key.fields) <= set(fields)
        else:
            assert not key.fields
        assert not key.absent or key.use is Use.HONOURED


# --- known and not taken ---

BY_TENSORS = [(kind, part) for kind in REFUSED for part in kind.tensors]
BY_KEYS = [(kind, key) for kind in REFUSED for key in kind.keys]
BY_NAMES = [(kind, name) for kind in REFUSED for name in kind.architectures]
BY_TYPES = [(kind, name) for kind in REFUSED for name in kind.types]


@pytest.mark.parametrize(("kind", "part"), BY_TENSORS, ids=str)
def test_by_its_tensors(tmp_path: Path, kind: object, part: str) -> None:
    name = f"layers.0.self_attn{part}weight" if part.startswith(".") else f"{part.removesuffix('.')}.weight"
    if part.startswith(".mlp"):
        name = f"layers.0{part}0.weight"
    text = message(made(tmp_path, "dspark", extra={name: ZERO}))
    assert kind.name in text and kind.why in text and name in text  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "key"), BY_KEYS, ids=str)
@pytest.mark.parametrize("section", [own, top])
def test_by_its_keys(tmp_path: Path, kind: object, key: str, section: Callable[..., Change]) -> None:
    text = message(made(tmp_path, "dflash2", section(**{key: 4})))
    assert kind.name in text and key in text  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "name"), BY_NAMES, ids=str)
def test_by_its_architecture(tmp_path: Path, kind: object, name: str) -> None:
    text = message(made(tmp_path, "dspark", top(architectures=[name])))
    assert kind.name in text and name in text  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "name"), BY_TYPES, ids=str)
@pytest.mark.parametrize("key", ["model_type", "speculators_model_type"])
def test_by_its_type(tmp_path: Path, kind: object, name: str, key: str) -> None:
    text = message(made(tmp_path, "dspark", top(**{key: name})))
    assert kind.name in text and name in text  # type: ignore[attr-defined]


# --- names ---


@pytest.mark.parametrize(
    ("stored", "meaning"),
    [
        ("model.layers.0.mlp.gate_proj.weight", "layers.0.mlp.gate_proj.weight"),
        ("draft_model.model.fc.weight", "fc.weight"),
        ("encoder.fc.weight", "fc.weight"),
        ("encoder.output_norm_enc.weight", "hidden_norm.weight"),
        ("draft_model.context_proj.weight", "fc.weight"),
        ("context_norm.weight", "hidden_norm.weight"),
        ("final_norm.weight", "norm.weight"),
        ("markov_w1.weight", "markov_head.markov_w1.weight"),
        ("gate_proj.bias", "markov_head.gate_proj.bias"),
        ("logit_head.markov_head.markov_w2.weight", "markov_head.markov_w2.weight"),
        ("confidence_proj.bias", "confidence_head.proj.bias"),
        ("candidate_selector.predecessor_codebook.weight", "candidate_selector.predecessor_codebook"),
        ("candidate_selector.hidden_projection.weight", "candidate_selector.hidden_projection.weight"),
        ("layers.1.self_attn.q_norm.weight", "layers.1.self_attn.q_norm.weight"),
    ],
)
def test_names(stored: str, meaning: str) -> None:
    assert common_names([stored]) == {stored: meaning}


def some_prefixed(tensors: Tensors) -> Tensors:
    return {f"model.{name}" if number % 2 else name: tensor for number, (name, tensor) in enumerate(tensors.items())}


def test_a_prefix_on_some_names(tmp_path: Path) -> None:
    config_, tensors = make_config("dflash2"), make_tensors(make_config("dflash2"))
    write(tmp_path, config_, some_prefixed(tensors))
    alone(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("equal", [True, False])
def test_two_tensors_of_one_meaning(tmp_path: Path, equal: bool) -> None:
    data, tensors = make_config("dflash2"), make_tensors(make_config("dflash2"))
    name = "candidate_selector.predecessor_codebook"
    write(tmp_path, data, tensors | {f"{name}.weight": tensors[name] if equal else tensors[name] + tensors[name]})
    if equal:
        assert config(tmp_path).family == "dflash2"
    else:
        text = message(tmp_path)
        assert f"{name}.weight" in text and "mean the same and differ" in text


FREQUENCIES = "layers.0.self_attn.rotary_emb.inv_freq"


def frequencies(theta: float, dtype: object = np.float32) -> Tensors:
    return {FREQUENCIES: (theta ** (-np.arange(0, 32, 2) / 32)).astype(dtype)}  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_rotary_frequencies_are_left_out(tmp_path: Path, dtype: object) -> None:
    alone(made(tmp_path / "d", "dspark", extra=frequencies(1e6, dtype)), tmp_path / "out")


@pytest.mark.parametrize("extra", [frequencies(1e4), frequencies(1e7), {FREQUENCIES: np.ones(8, np.float32)}])
def test_rotary_frequencies_of_another_base_are_refused(tmp_path: Path, extra: Tensors) -> None:
    text = message(made(tmp_path, "dspark", extra=extra))
    assert FREQUENCIES in text and "the base 1e+06" in text and "drafter_rope_theta" in text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["dflash_module.fc.weight"], "raw state"),
        (["_fsdp_wrapped_module.fc.weight"], "raw state"),
        (["layers.0.self_attn.q_proj.weight_scale"], "packed"),
        (["layers.0.self_attn.q_proj.weight_packed"], "packed"),
        (["layers.0.self_attn.q_proj.qweight"], "packed"),
        (["layers.0.mlp.up_proj.input_scale"], "packed"),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, names: list[str], expected: str) -> None:
    text = message(made(tmp_path, "dspark", extra=dict.fromkeys(names, ZERO)))
    assert expected in text and names[0] in text


@pytest.mark.parametrize("file", ["training_state.pt", "model.distcp", "pytorch_model.bin"])
def test_a_folder_of_training_state(tmp_path: Path, file: str) -> None:
    made(tmp_path, "dspark")
    (tmp_path / "model.safetensors").rename(tmp_path / file)
    text = message(tmp_path)
    assert file in text and "export" in text.lower() and "raw" in text


# --- vocabularies ---


def changed(name: str, change: Callable[[np.ndarray], object]) -> Callable[[Json, Tensors], None]:
    def part(data: Json, tensors: Tensors) -> None:
        with_reduced_vocabulary(data, tensors)
        change(tensors[name])

    return part


def drop(name: str) -> Callable[[Json, Tensors], None]:
    def part(data: Json, tensors: Tensors) -> None:
        with_reduced_vocabulary(data, tensors)
        del tensors[name]

    return part


def put(index: int, value: int) -> Callable[[np.ndarray], object]:
    return lambda array: array.__setitem__(index, value)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (changed("d2t", put(0, 700)), ["d2t", "more than once"]),
        (changed("d2t", put(319, 640)), ["d2t", "0 to 639"]),
        (changed("d2t", put(0, -5)), ["d2t", "-5"]),
        (changed("t2d", lambda array: np.logical_not(array, out=array)), ["t2d", "d2t", "other tokens"]),
        (drop("d2t"), ["draft_vocab_size", "d2t"]),
        (drop("lm_head.weight"), ["draft_vocab_size", "lm_head.weight"]),
    ],
)
def test_wrong_maps(tmp_path: Path, part: Callable[[Json, Tensors], None], expected: list[str]) -> None:
    text = message(folder_of(tmp_path, "dspark", part))
    for found in expected:
        assert found in text


def test_a_reduced_dflash_2(tmp_path: Path) -> None:
    assert "draft_vocab_size" in message(folder_of(tmp_path, "dflash2", with_reduced_vocabulary))


def test_padded_rows_are_the_same_tokens(tmp_path: Path) -> None:
    """More rows than tokens are padding, of which none is drafted."""

    def part(data: Json, tensors: Tensors) -> None:
        data["draft_vocab_size"] = 704
        second = "markov_head.markov_w2.weight"
        tensors[second] = np.concatenate([tensors[second], tensors[second][:64]])

    found = alone(folder_of(tmp_path / "d", "dspark", part), tmp_path / "out").config
    assert (found.draft_vocab_size, found.reduced) == (704, False)


def test_headers_are_all_that_is_read(tmp_path: Path) -> None:
    """The weights may be anything at all, even not there, as long as the headers are."""
    layers, mine, tensors = original("dspark")
    write(tmp_path, layers | {"dflash_config": mine}, tensors)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    path.write_bytes(data[: 8 + size] + b"\xff" * (len(data) - 8 - size))
    assert config(tmp_path).family == "dspark"
