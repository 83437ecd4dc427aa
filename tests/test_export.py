"""What an export consists of: its files, its configuration, its bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime_genai as og
import pytest

from builder.package import GraphPlan
from genai_config.sections import Decoder, DecoderInputs, DecoderOutputs
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.tensor_plan import TensorPlan
from tests.checkpoints import PREFIX, TINY, Json, Tensors, variant
from tests.runtime import export


def notes(folder: Path) -> str:
    return "\n".join(json.loads((folder / "draftsmith.json").read_text())["notes"])


def config_of(folder: Path) -> Json:
    data: Json = json.loads((folder / "genai_config.json").read_text())
    return data


# --- files ---


def test_files(tiny_export: Path) -> None:
    names = {path.name for path in tiny_export.iterdir()}
    copied = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}
    assert names == copied | {"model.onnx", "model.onnx.data", "genai_config.json", "draftsmith.json"}
    for name in copied:
        assert (tiny_export / name).read_bytes() == (TINY / name).read_bytes()
    manifest = json.loads((tiny_export / "draftsmith.json").read_text())
    assert manifest["files"] == {n: (tiny_export / n).stat().st_size for n in sorted(names - {"draftsmith.json"})}


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the folders are called, and over an earlier export as well as anew."""
    first = export(TINY, tmp_path / "first", precision="bf16", provider="cuda")
    contents = {path.name: path.read_bytes() for path in first.iterdir()}
    again = [
        export(TINY, first, precision="bf16", provider="cuda"),
        export(variant(tmp_path / "copy"), tmp_path / "second", precision="bf16", provider="cuda"),
        export(variant(tmp_path / "shards", shards=3), tmp_path / "third", precision="bf16", provider="cuda"),
    ]
    for folder in again:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents


def test_the_model_file_tells_nothing_of_classes_and_folders(tiny_export: Path) -> None:
    data = (tiny_export / "model.onnx").read_bytes()
    for word in (b"DenseCausalLM", b"onnxscript", str(TINY).encode(), b"/tmp"):
        assert word not in data


def test_weights_are_where_they_should_be(tmp_path: Path) -> None:
    """Unchanged tensors byte for byte; every location a plain name in the folder; no byte written twice."""
    from safetensors.torch import load_file

    folder = export(TINY, tmp_path / "out", precision="bf16", provider="cuda")
    model = ir.load(folder / "model.onnx")
    stored = load_file(TINY / "model.safetensors")
    spans = []
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            assert value.const_value.location == "model.onnx.data"
            spans.append((value.const_value.offset or 0, value.const_value.length or 0))
    assert sum(length for _, length in spans) == (folder / "model.onnx.data").stat().st_size
    ends = [offset + length for offset, length in sorted(spans)]
    assert [offset for offset, _ in sorted(spans)] == [0, *ends[:-1]]

    def bits(name: str) -> Any:
        return stored[PREFIX + name].view(dtype=__import__("torch").int16).numpy()

    def written(name: str) -> Any:
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        return tensor.numpy().view(np.int16)

    assert (written("model.embed_tokens.weight") == bits("embed_tokens.weight")).all()
    gate_up = written("model.layers.0.mlp.gate_proj+up_proj.weight")
    assert (gate_up[:288] == bits("layers.0.mlp.gate_proj.weight")).all()
    assert (gate_up[288:] == bits("layers.0.mlp.up_proj.weight")).all()
    stacked = written("model.layers.3.self_attn.q_proj+k_proj+v_proj.weight")
    by_head = bits("layers.3.self_attn.q_proj.weight").reshape(4, 2, 64, 128)
    assert (stacked[:256] == by_head[:, 0].reshape(256, 128)).all()  # queries first
    assert (stacked[-256:] == by_head[:, 1].reshape(256, 128)).all()  # gates last


# --- genai_config.json ---


def test_config(tiny_export: Path) -> None:
    config = config_of(tiny_export)
    model = config["model"]
    assert (model["type"], model["vocab_size"], model["context_length"]) == ("qwen3_5_text", 640, 4096)
    assert (model["eos_token_id"], model["pad_token_id"]) == ([2, 0], 0)
    assert "bos_token_id" not in model
    assert config["search"] == {"max_length": 4096, "past_present_share_buffer": False, "do_sample": False}
    assert model["decoder"]["session_options"]["provider_options"] == []


def test_config_for_cuda(tmp_path: Path) -> None:
    """The runtime's own parser takes it (running it needs a GPU)."""
    folder = export(TINY, tmp_path / "out", "include_hidden_states=true", precision="bf16", provider="cuda")
    config = config_of(folder)
    assert config["model"]["decoder"]["session_options"]["provider_options"] == [{"cuda": {"enable_cuda_graph": "0"}}]
    assert config["model"]["decoder"]["outputs"]["hidden_states"] == "hidden_states"
    assert config["search"]["past_present_share_buffer"] is True
    og.Config(str(folder))


@pytest.mark.parametrize("options", [(), ("include_hidden_states=true",), ("prune_lm_head=false",)])
def test_config_and_graph_name_the_same_values(tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = export(TINY, tmp_path / "out", *options)
    graph = ir.load(folder / "model.onnx").graph
    decoder = config_of(folder)["model"]["decoder"]
    for side, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        in_graph = {value.name for value in values}
        templates = decoder[side].values()
        possible = {template % layer for template in templates if "%d" in template for layer in range(8)}
        possible |= {template for template in templates if "%d" not in template}
        assert in_graph <= possible
        for template in templates:
            matching = {template % i for i in range(8)} if "%d" in template else {template}
            assert matching & in_graph


@pytest.mark.parametrize(("logits", "mask"), [("logit", "attention_mask"), ("logits", None), ("logits", "mask")])
def test_a_config_that_does_not_fit_the_graph_is_a_bug(logits: str, mask: str | None) -> None:
    values = [ir.Value(name=name) for name in ("input_ids", "attention_mask")]
    graph = ir.Graph(values, [ir.Value(name="logits")], nodes=[])
    decoder = Decoder("m", 1, 1, 1, 1, 1, DecoderInputs("input_ids", mask), DecoderOutputs(logits))
    with pytest.raises(RuntimeError, match="disagree"):
        GraphPlan("decoder", decoder, ir.Model(graph, ir_version=10), TensorPlan({}, {}, {}), Checkpoint(TINY))


def test_generation_config_fills_search(tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    declared = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}
    more = {"eos_token_id": 5, "bos_token_id": 1, "pad_token_id": 4, "max_new_tokens": 9}
    (checkpoint / "generation_config.json").write_text(json.dumps(declared | more))
    declared |= {"no_repeat_ngram_size": 4, "min_length": 3}
    (checkpoint / "generation_config.json").write_text(json.dumps(declared | more))
    folder = export(checkpoint, tmp_path / "out")
    config = config_of(folder)
    assert declared.items() <= config["search"].items()
    assert (config["model"]["bos_token_id"], config["model"]["pad_token_id"]) == (1, 4)
    assert config["model"]["eos_token_id"] == [5, 0]  # generation_config.json's, and config.json's
    og.Config(str(folder))


def test_what_the_configuration_has_no_place_for_is_said(tmp_path: Path) -> None:
    """The runtime's parser refuses min_p; its caller may set it."""
    checkpoint = variant(tmp_path / "c")
    declared = {"min_p": 0.05, "num_beams": 1, "typical_p": 0.9, "presence_penalty": 0.0, "eos_token_id": 2}
    (checkpoint / "generation_config.json").write_text(json.dumps(declared))
    said = notes(export(checkpoint, tmp_path / "out"))
    assert "min_p 0.05, typical_p 0.9 of generation_config.json is left to the caller" in said and "beams" not in said


def test_stop_ids_without_a_generation_config(tmp_path: Path) -> None:
    """config.json alone counts; that the chat's end token is not among them is said."""
    checkpoint = variant(tmp_path / "c", config=lambda data: data.update(eos_token_id=[7, 0]))
    (checkpoint / "generation_config.json").unlink()
    folder = export(checkpoint, tmp_path / "out")
    assert config_of(folder)["model"]["eos_token_id"] == [0, 7]
    assert "<|im_end|> (id 2)" in notes(folder)


# --- the tokenizer ---


@pytest.mark.parametrize("name", ["Qwen3_5Tokenizer", "Qwen3VLTokenizer", None])
def test_tokenizer_class_that_the_runtime_does_not_know(tmp_path: Path, name: str | None) -> None:
    checkpoint = variant(tmp_path / "c")
    path = checkpoint / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = name
    path.write_text(json.dumps(config))
    folder = export(checkpoint, tmp_path / "out")
    assert json.loads((folder / path.name).read_text()) == config | {"tokenizer_class": "Qwen2Tokenizer"}
    assert "Qwen2Tokenizer" in notes(folder)
    assert og.Tokenizer(og.Model(str(folder))).encode("Ada").size


@pytest.mark.parametrize(
    "name", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast"]
)
def test_tokenizer_class_that_the_runtime_knows(tmp_path: Path, name: str) -> None:
    checkpoint = variant(tmp_path / "c")
    path = checkpoint / "tokenizer_config.json"
    path.write_text(path.read_text().replace("Qwen2Tokenizer", name))
    folder = export(checkpoint, tmp_path / "out")
    assert (folder / path.name).read_bytes() == path.read_bytes()
    assert og.Tokenizer(og.Model(str(folder))).encode("Ada").size


@pytest.mark.parametrize(
    "missing", [["tokenizer.json"], ["tokenizer_config.json"], ["tokenizer.json", "tokenizer_config.json"]]
)
def test_no_tokenizer(tmp_path: Path, missing: list[str]) -> None:
    checkpoint = variant(tmp_path / "c")
    for name in missing:
        (checkpoint / name).unlink()
    folder = export(checkpoint, tmp_path / "out")
    assert not any("token" in path.name or "template" in path.name for path in folder.iterdir())
    assert missing[0] in notes(folder) and "the export has none" in notes(folder)


@pytest.mark.parametrize("added", [None, 5, "x", {}, [None, 5, {"id": "x"}]])
def test_a_tokenizer_of_another_shape_is_copied(tmp_path: Path, added: Any) -> None:
    """What the runtime makes of it is its own affair; looking for the end token in it must not fail."""
    checkpoint = variant(tmp_path / "c")
    data = json.loads((checkpoint / "tokenizer.json").read_text()) | {"added_tokens": added}
    (checkpoint / "tokenizer.json").write_text(json.dumps(data))
    folder = export(checkpoint, tmp_path / "out")
    assert json.loads((folder / "tokenizer.json").read_text()) == data


# --- notes ---


def test_declared_type_differs_from_the_tensors(tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", config=lambda data: data["text_config"].update(dtype="float32"))
    folder = export(checkpoint, tmp_path / "out")
    assert "config.json says float32, the tensors are bfloat16" in notes(folder)
    assert (folder / "model.onnx.data").read_bytes() == (export(TINY, tmp_path / "o2") / "model.onnx.data").read_bytes()


def test_declared_mtp_head_without_tensors(tmp_path: Path) -> None:
    def change(weights: Tensors) -> None:
        for name in [name for name in weights if name.startswith("mtp.")]:
            del weights[name]

    folder = export(variant(tmp_path / "c", tensors=change), tmp_path / "out")
    assert "the checkpoint has no mtp.* tensors" in notes(folder)


# --- the config's other spellings ---


def old_rope(data: Json) -> None:
    text = data["text_config"]
    parameters = text.pop("rope_parameters")
    text.update(rope_theta=parameters["rope_theta"], partial_rotary_factor=0.25, rope_scaling=None)


def scaling_rope(data: Json) -> None:
    text = data["text_config"]
    text["rope_scaling"] = text.pop("rope_parameters") | {"type": "default"}
    del text["rope_scaling"]["rope_type"]


def interval(data: Json) -> None:
    del data["text_config"]["layer_types"]


@pytest.mark.parametrize("change", [old_rope, scaling_rope, interval])
def test_spellings_of_one_config_give_one_graph(tmp_path: Path, tiny_export: Path, change: Any) -> None:
    folder = export(variant(tmp_path / "c", config=change), tmp_path / "out")
    for name in ("model.onnx", "model.onnx.data", "genai_config.json"):
        assert (folder / name).read_bytes() == (tiny_export / name).read_bytes()


def test_the_rotary_base_is_read(tmp_path: Path, tiny_export: Path) -> None:
    change = lambda data: data["text_config"]["rope_parameters"].update(rope_theta=10000.0)  # noqa: E731
    folder = export(variant(tmp_path / "c", config=change), tmp_path / "out")
    tables = [ir.load(f / "model.onnx").graph.initializers["rotary_emb.cos"].const_value for f in (folder, tiny_export)]
    assert tables[0] is not None and tables[1] is not None
    assert not np.allclose(tables[0].numpy(), tables[1].numpy())
