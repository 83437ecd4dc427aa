"""What real drafters have that an earlier reading refused, misread or said nothing of, each with its right value."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from builder.export import export as run_export
from builder.options import BuildOptions
from drafters.checkpoint.config import DFlash, DFlash2, DrafterConfig, DSpark
from drafters.checkpoint.dialects import DIALECTS
from drafters.checkpoint.identity import identity
from drafters.checkpoint.mask_row import MASK_FILE
from drafters.checkpoint.reading import read_drafter
from draftsmith.cli import main
from draftsmith.validation.packed_session import PackedSession
from draftsmith.validation.reference import entering_streams, load_reference, operator_epsilon
from draftsmith.validation.widen import widen
from draftsmith.verify.checks import Results
from draftsmith.verify.drafter import check_drafter
from draftsmith.verify.folder import open_export
from draftsmith.verify.running import Running
from draftsmith.verify.sources import open_drafter, open_target
from draftsmith.verify.target import check_target, relative
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.torch_file import read_torch_file
from tests.checkpoints import TINY
from tests.dialects import with_tables, write_as
from tests.drafters import alone, drafter, own, sliding, top
from tests.producers import cases
from tests.refusals import refused
from tests.runtime import export, random_ids
from tests.test_draft_beyond import folder_of, set_key
from tests.test_drafters import LIMIT, THREE_STEPS, largest_error
from tests.tiny_drafter import Json, Tensors

Change = Callable[[Json], object]


def changed(folder: Path, change: Change) -> Path:
    """The folder with its config changed."""
    data = json.loads((folder / "config.json").read_text())
    change(data)
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def config(folder: Path, block_size: int | None = None) -> DrafterConfig:
    return read_drafter(Checkpoint(folder), block_size=block_size)


def same(one: DrafterConfig, other: DrafterConfig) -> bool:
    """Whether two configurations are one but for what is said of them."""
    return {**vars(one), "notes": ()} == {**vars(other), "notes": ()}


def message(folder: Path) -> str:
    with pytest.raises(ExportError) as caught:
        config(folder)
    return str(caught.value)


def packed(folder: Path, out: Path, *options: str, target: Path = TINY) -> Path:
    return export(target, out, f"drafter_path={folder}", *options, precision="bf16", provider="cuda")


# --- keys ---


def gone(*keys: str) -> Change:
    return lambda data: [data.pop(key, None) for key in keys]


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_an_activation_that_is_left_out_is_silu(tmp_path: Path, kind: str) -> None:
    plain = config(drafter(tmp_path / "a", kind))
    assert same(config(drafter(tmp_path / "b", kind, after=gone("hidden_act"))), plain)


@pytest.mark.parametrize(
    "nested",
    [
        {"hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"block_size": 8, "model_type": "qwen3", "attention_dropout": 0.5},
    ],
)
def test_a_text_config_that_agrees(tmp_path: Path, nested: Json) -> None:
    plain = config(drafter(tmp_path / "a", "dspark"))
    assert same(config(drafter(tmp_path / "b", "dspark", after=top(text_config=nested))), plain)


@pytest.mark.parametrize(
    ("nested", "found"),
    [
        ({"num_hidden_layers": 8}, "2 and 8"),
        ({"rms_norm_eps": 1e-5}, "1e-06 and 1e-05"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}, "rope_parameters"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ({"mask_token_id": 3}, "630 and 3"),
        ({"is_causal": True}, "is_causal"),
    ],
)
def test_a_text_config_that_does_not(tmp_path: Path, nested: Json, found: str) -> None:
    key = next(iter(nested))
    text = message(drafter(tmp_path, "dspark", after=top(text_config=nested)))
    assert "disagree" in text and f"text_config.{key}" in text and found in text


def test_a_text_config_alone(tmp_path: Path) -> None:
    """transformers reads the nested keys; there may be no others."""

    def nest(data: Json) -> None:
        inner = {key: data.pop(key) for key in list(data) if key not in ("architectures", "dflash_config")}
        data["text_config"] = inner

    assert same(config(drafter(tmp_path / "b", "dspark", after=nest)), config(drafter(tmp_path / "a", "dspark")))


@pytest.mark.parametrize("place", ["top", "text_config"])
def test_one_rule_for_unknown_keys(tmp_path: Path, place: str) -> None:
    key = {"merged_by": "me"}
    folder = drafter(tmp_path, "dspark", after=top(**key) if place == "top" else top(text_config=key))
    where = "merged_by" if place == "top" else "text_config.merged_by"
    assert any(f"{where} is not known and has no effect" in note for note in config(folder).notes)


def test_a_selector_of_all_tokens(tmp_path: Path) -> None:
    plain = config(drafter(tmp_path / "a", "dflash2"))
    assert same(config(drafter(tmp_path / "b", "dflash2", after=own(selector_vocab_size=640))), plain)


# --- contradictions ---


@pytest.mark.parametrize("keys", [{"is_causal": False}, {"is_causal": False, "dflash_query_causal": False}])
def test_both_directions_at_once(tmp_path: Path, keys: Json) -> None:
    folder = drafter(tmp_path, "dspark", sliding(64, causal=None), after=top(**keys, sliding_window_non_causal=False))
    text = message(folder)
    assert "disagree" in text and "is_causal" in text and "sliding_window_non_causal" in text


def test_speculators_own_default_counts(tmp_path: Path) -> None:
    """Its writer leaves sliding_window_non_causal out where it is false."""
    folder = write_as("speculators", "dspark", tmp_path)
    layers = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}
    changed(folder, lambda data: data["transformer_layer_config"].update(layers))
    assert [layer.causal for layer in config(folder).layers] == [True, True]
    changed(folder, lambda data: data.update(is_causal=False))
    assert "sliding_window_non_causal, left out" in message(folder)


@pytest.mark.parametrize(("drafts", "good"), [(4, True), (8, True), (9, False), (15, False)])
def test_more_drafts_than_rows(tmp_path: Path, drafts: int, good: bool) -> None:
    folder = write_as("speculators", "dspark", tmp_path)
    run = {"proposal_methods": [{"speculative_tokens": drafts}]}
    changed(folder, lambda data: data["speculators_config"].update(run))
    if good:
        assert config(folder).num_draft_tokens == 8
    else:
        text = message(folder)
        assert "speculative_tokens" in text and f"{drafts} and 8" in text


# --- YaRN ---

MIRRORED = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64}


def test_specforges_mirror_of_the_rotary_keys(tmp_path: Path) -> None:
    def mirror(data: Json) -> None:
        data["rope_parameters"] = MIRRORED | {"rope_theta": 1e6}
        data["rope_scaling"] = dict(MIRRORED)
        data["rope_theta"] = 1e6

    found = config(drafter(tmp_path, "dspark", after=mirror))
    assert found.rotary.yarn is not None and (found.rotary.theta, found.rotary.yarn.factor) == (1e6, 64)


def test_yarn_that_does_not_reach_the_targets_length(tmp_path: Path) -> None:
    """ModelOpt's documentation: a factor of 48 on 4096 positions, beside the target's 262144."""

    def short(data: Json) -> None:
        scaling = {"type": "yarn", "factor": 48.0, "original_max_position_embeddings": 4096}
        data |= {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": 1e6, "max_position_embeddings": 262144}

    found = config(drafter(tmp_path, "dspark", after=short))
    assert found.rotary.yarn is not None and found.rotary.yarn.length == found.max_position_embeddings == 196608
    assert any("to 196608 positions, max_position_embeddings is 262144" in note for note in found.notes)


# --- producers ---

WRITTEN_BY = {
    "automodel": "NeMo Automodel",
    "deepspec": "DeepSpec",
    "modelopt": "NVIDIA ModelOpt",
    "specforge": "SpecForge",
    "speculators": "vLLM speculators",
    "torchspec": "TorchSpec",
    "zlab": "z-lab / Inco",
}


@pytest.mark.parametrize("name", cases())
def test_each_producers_own_files_are_told(tmp_path: Path, name: str) -> None:
    """One is written as another one's: Automodel's DSpark as DeepSpec's, from which it comes."""
    case = cases()[name]
    wanted = WRITTEN_BY[name.split("/")[0].split("-")[0]]
    if name == "automodel-0.7.0/dspark_vanilla":
        wanted = "DeepSpec"
    assert identity(Checkpoint(case.write(tmp_path / "d"))).dialect.name == wanted


def verl(kind: str) -> Change:
    """What verl-SpeCo writes: TorchSpec's keys, and num_target_layers as others mean it."""

    def change(data: Json) -> None:
        data |= data.pop("dflash_config") | {"num_target_layers": 8, "target_num_hidden_layers": 8}
        data |= {"model_type": kind, "num_context_layers": 3, "target_hidden_size": 128, "ce_loss_alpha": 0.1}
        data |= {"rope_theta": data.pop("rope_parameters")["rope_theta"]}
        for key in ("hidden_act", "is_causal", "layer_types", "attention_bias"):
            data.pop(key, None)

    return change


def test_verl_counts_layers_where_torchspec_counts_taps(tmp_path: Path) -> None:
    folder = changed(folder_of(tmp_path / "d", "dflash"), verl("dflash"))
    checkpoint = Checkpoint(folder)
    found = identity(checkpoint)
    assert found.dialect.name == "verl-SpeCo" and found.sections.integer("num_target_layers") == 8
    assert config(folder).taps == (2, 4, 6)
    packed(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("keys", "part"),
    [({"num_context_layers": 4}, "num_context_layers"), ({"target_num_hidden_layers": 12}, "num_target_layers")],
)
def test_verls_numbers_are_checked(tmp_path: Path, keys: Json, part: str) -> None:
    folder = changed(folder_of(tmp_path, "dflash"), verl("dflash"))
    assert part in message(changed(folder, lambda data: data.update(keys)))


def test_the_layers_of_the_target_are_not_taps(tmp_path: Path) -> None:
    """TorchSpec's keys with a count that is not of taps: nobody's, read as most mean it."""
    folder = changed(folder_of(tmp_path, "dflash"), verl("dflash"))
    changed(folder, gone("num_context_layers"))
    assert identity(Checkpoint(folder)).dialect.name != "TorchSpec" and config(folder).taps == (2, 4, 6)


def test_automodels_window_that_its_file_may_leave_out(tmp_path: Path) -> None:
    folder = write_as("Automodel", "dflash", tmp_path)
    assert any("draft_sliding_window" in note for note in config(folder).notes)
    layers = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64, "use_sliding_window": True}
    changed(folder, lambda data: data.update(layers))
    assert not any("draft_sliding_window" in note for note in config(folder).notes)


# --- the anchor's row ---


def anchored(kind: str) -> Any:
    def part(data: Json, tensors: Tensors) -> None:
        data["sample_from_anchor"] = True

    return part


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_anchors_that_predict(tmp_path: Path, kind: str) -> None:
    """speculators trains DFlash and DFlash 2 so, too; the runtime runs them as DSpark."""
    made = alone(folder_of(tmp_path / "d", kind, anchored(kind)), tmp_path / "out")
    assert isinstance(made.config.variant, DFlash2 if kind == "dflash2" else DFlash)
    assert (made.config.family, made.config.kind, made.config.num_draft_tokens) == (kind, "dspark", 8)
    assert largest_error(made, THREE_STEPS) < LIMIT


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_an_export_with_an_anchor_that_predicts(tmp_path: Path, kind: str) -> None:
    folder_of(tmp_path / "d", kind, anchored(kind))
    out = packed(tmp_path / "d", tmp_path / "out", "dflash2_num_draft_tokens=5")
    section = json.loads((out / "genai_config.json").read_text())["model"]["dspark"]
    assert (section["num_draft_tokens"], section["block_size"]) == (5, 5)


@pytest.mark.parametrize("confidence", [{}, {"enable_confidence_head": False}])
def test_a_dspark_of_rank_0(tmp_path: Path, confidence: Json) -> None:
    folder = write_as("speculators", "dflash", tmp_path)
    keys = {"speculators_model_type": "dspark", "architectures": ["DSparkDraftModel"], "markov_rank": 0}
    keys |= {"sample_from_anchor": True, "enable_confidence_head": False} | confidence
    found = config(changed(folder, lambda data: data.update(keys)))
    assert isinstance(found.variant, DSpark) and found.variant.markov_rank == 0 and found.num_draft_tokens == 8


# --- rotary bases ---


def test_another_base_than_the_targets_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed(drafter(tmp_path / "d", "dspark"), tmp_path / "out")
    assert "its rotary base is 1e+06, the target's 1e+07" in capsys.readouterr().out
    rope = top(rope_parameters={"rope_type": "default", "rope_theta": 1e7})
    packed(drafter(tmp_path / "e", "dspark", rope), tmp_path / "out2")
    assert "rotary base" not in capsys.readouterr().out


def test_a_base_to_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes are those of a config with that base; what was done is said, and stands in draftsmith.json."""
    tried = packed(drafter(tmp_path / "a", "dspark"), tmp_path / "tried", "drafter_rope_theta=10000000")
    said = capsys.readouterr().out
    rope = top(rope_parameters={"rope_type": "default", "rope_theta": 1e7})
    written = packed(drafter(tmp_path / "b", "dspark", rope), tmp_path / "written")
    for name in ("dspark.onnx", "dspark.onnx.data"):
        assert (tried / name).read_bytes() == (written / name).read_bytes()
    assert "its rotary base is 1e+07, as drafter_rope_theta asks for; config.json says 1e+06" in said
    assert json.loads((tried / "draftsmith.json").read_text())["options"]["drafter_rope_theta"] == 1e7


@pytest.mark.parametrize("value", ["1", "0", "-5", "inf", "nan", "x"])
def test_a_base_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options", "drafter_path=d"]
    assert "above 1" in refused(capsys, *arguments, f"drafter_rope_theta={value}")


# --- the last layer's tap ---


def streams(tokens: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The stream that leaves the last layer, raw; and what a producer captures, ``hidden_states[last + 1]``."""
    model = load_reference(TINY, torch.bfloat16)
    with operator_epsilon(), torch.no_grad():
        captured = model(input_ids=torch.tensor(tokens), output_hidden_states=True).hidden_states
        raw = entering_streams(model, torch.tensor(tokens))[-1]
    return raw[0].numpy(), captured[7 + 1][0].numpy()


@pytest.mark.parametrize(
    ("producer", "kind", "option", "normed"),
    [
        ("z-lab, generation 2", "dflash2", None, True),
        ("ModelOpt", "dspark", None, True),
        ("DeepSpec", "dspark", None, True),
        ("SpecForge", "dspark", None, False),
        ("Automodel", "dflash", None, False),
        ("z-lab, generation 2", "dflash2", "raw", False),
        ("SpecForge", "dspark", "normed", True),
    ],
)
def test_the_last_layers_tap(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    producer: str,
    kind: str,
    option: str | None,
    normed: bool,
) -> None:
    def last(data: Json) -> None:
        for keys in (data, data.get("dflash_config", {})):
            for key, offset in (("target_layer_ids", 0), ("eagle_aux_hidden_state_layer_ids", 1)):
                if keys.get(key):
                    keys[key] = [1 + offset, 7 + offset, 3 + offset]

    folder = changed(write_as(producer, kind, tmp_path / "d"), last)
    out = packed(folder, tmp_path / "out", *([f"last_tap={option}"] if option else []))
    said, word = capsys.readouterr().out, "normed" if normed else "raw"
    assert "reads the target's last layer " + ("behind" if normed else "before") in said
    assert json.loads((out / "draftsmith.json").read_text())["options"]["last_tap"] == word
    widen(out, tmp_path / "low")
    tokens = random_ids(3, 1, 40)
    (got,) = PackedSession(tmp_path / "low" / "model.onnx", 1)([tokens[0]])["aux_hidden_states"]
    raw, captured = streams(tokens)
    wanted, other = (captured, raw) if normed else (raw, captured)
    assert relative(got[:, 128:256], wanted) < 1e-5 < 0.01 < relative(got[:, 128:256], other)


def test_a_producer_without_such_a_tap_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = packed(drafter(tmp_path / "d", "dspark"), tmp_path / "out")
    assert "last layer" not in capsys.readouterr().out
    assert "last_tap" not in json.loads((out / "draftsmith.json").read_text())["options"]


@pytest.mark.parametrize(("layout", "precision"), [("dense", "fp16"), ("packed", "bf16")])
def test_taps_by_hand_stay_raw(tmp_path: Path, layout: str, precision: str) -> None:
    """As they were before there was a choice, byte for byte; the other one may be asked for."""

    def graph(name: str, *options: str) -> ir.Model:
        given = ("aux_hidden_state_layers=2,8", *options, *(["use_paged_attention=true"] * (layout == "packed")))
        out = export(TINY, tmp_path / name, *given, precision=precision, provider="cuda")
        recorded = json.loads((out / "draftsmith.json").read_text())["options"]["last_tap"]
        assert recorded == ("normed" if "last_tap=normed" in options else "raw")
        return ir.load(out / "model.onnx")

    plain, raw, normed = graph("plain"), graph("raw", "last_tap=raw"), graph("normed", "last_tap=normed")
    assert (tmp_path / "plain" / "model.onnx").read_bytes() == (tmp_path / "raw" / "model.onnx").read_bytes()
    taps = [last_of(model) for model in (plain, raw, normed)]
    assert taps[0] == taps[1] != taps[2]


def last_of(model: ir.Model) -> tuple[str, int]:
    """The node that makes the last of the concatenated taps, and which of its outputs that is."""
    (output,) = (value for value in model.graph.outputs if value.name == "aux_hidden_states")
    node = output.producer()
    while node is not None and node.op_type != "Concat":
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    assert node is not None and node.inputs[-1] is not None
    producer = node.inputs[-1].producer()
    assert producer is not None
    return str(producer.name), list(producer.outputs).index(node.inputs[-1])


@pytest.mark.parametrize("options", [("last_tap=normed",), ("last_tap=raw", "aux_hidden_state_layers=2,7")])
def test_a_choice_without_such_a_tap(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str]) -> None:
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "fp32", "-e", "cpu", "--extra_options", *options]
    assert "last_tap" in refused(capsys, *arguments)
    drafter(tmp_path / "d", "dspark")
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options"]
    text = refused(capsys, *arguments, f"drafter_path={tmp_path / 'd'}", "last_tap=normed")
    assert "last_tap=normed" in text and "does not read the target's last layer" in text
    assert "raw or normed" in refused(capsys, *arguments, f"drafter_path={tmp_path / 'd'}", "last_tap=first")


@pytest.mark.parametrize("option", [None, "raw"])
def test_verify_knows_the_last_tap(tmp_path: Path, option: str | None) -> None:
    """Its checks of taps and of the drafter's scores pass; beside the word of another export they do not."""
    folder = drafter(tmp_path / "d", "dflash2", own(target_layer_ids=[1, 3, 7]))
    out = packed(folder, tmp_path / "out", *([f"last_tap={option}"] if option else []))
    widen(out, tmp_path / "low")
    assert not failed_checks(out, folder, tmp_path / "low")
    manifest = json.loads((out / "draftsmith.json").read_text())
    manifest["options"]["last_tap"] = "normed" if option else "raw"
    (out / "draftsmith.json").write_text(json.dumps(manifest))
    assert any(name.startswith("tap ") for name in failed_checks(out, folder, tmp_path / "low"))


def failed_checks(out: Path, folder: Path, low: Path) -> list[str]:
    export = open_export(out)
    assert export.drafter is not None
    target, results = open_target(TINY, export), Results(lambda check: None)
    source = open_drafter(folder, export.drafter, target, export.options)
    running = Running(low, low)
    with operator_epsilon():
        check_target(export, running, target, target.streams_of(source.config.taps, source.last_tap), results)
        check_drafter(export, running, target, source, results)
    return [check.name for check in results.failed]


def test_only_three_capture_behind_the_norm() -> None:
    normed = {dialect.name for dialect in DIALECTS if dialect.normed_last_tap}
    assert normed == {"z-lab / Inco", "NVIDIA ModelOpt", "DeepSpec"}


# --- the mask token's own row ---

ROW = torch.linspace(-1, 1, 128)


@pytest.mark.parametrize(
    "stored",
    [
        ROW,
        ROW[None],
        ROW.to(torch.bfloat16),
        {"mask_embedding": ROW},
        {"mask_token_id": 630, "embedding": ROW},
        torch.stack([ROW * 0, ROW])[1],
    ],
    ids=["row", "matrix", "bf16", "dictionary", "with its token", "a part of a storage"],
)
@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_a_row_for_the_mask_token(tmp_path: Path, kind: str, stored: object) -> None:
    """Against torch's own reading of the file, and far from what a drafter without it gives."""
    folder = drafter(tmp_path / "d", kind)
    plain = alone(folder, tmp_path / "plain")
    torch.save(stored, folder / MASK_FILE)
    made = alone(folder, tmp_path / "out")
    assert largest_error(made, THREE_STEPS) < LIMIT
    assert made.path.read_bytes() != plain.path.read_bytes()
    assert any(MASK_FILE in note for note in made.config.notes)


def test_such_a_row_with_a_scale_and_tables(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "d", "dspark", with_tables, set_key(input_embedding_scale=3.0))
    torch.save(ROW, folder / MASK_FILE)
    assert largest_error(alone(folder, tmp_path / "out"), THREE_STEPS) < LIMIT


class Command:
    """Would run a command where a pickle is executed."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("touch /tmp/executed-by-a-pickle",)


def archive(path: Path, found: object) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(found, protocol=2))


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: torch.save(ROW[:64], path), "[64]"),
        (lambda path: torch.save(torch.stack([ROW, ROW]), path), "[2, 128]"),
        (lambda path: torch.save(ROW / 0, path), "infinities or NaN"),
        (lambda path: torch.save(ROW.to(torch.int64), path), "int64"),
        (lambda path: torch.save({"mask_token_id": 7, "embedding": ROW}, path), "token 7"),
        (lambda path: torch.save({"a": ROW, "b": ROW}, path), "2 tensors"),
        (lambda path: torch.save("a row", path), "one tensor"),
        (lambda path: torch.save(torch.stack([ROW, ROW], 1)[:, 0], path), "one after another"),
        (lambda path: torch.save(torch.nn.Linear(2, 2), path), "torch.nn.modules.linear.Linear"),
        (lambda path: archive(path, Command()), "posix.system"),
        (lambda path: archive(path, [eval]), "__builtin__.eval"),
        (lambda path: path.write_bytes(pickle.dumps(Command())), "zip"),
        (lambda path: path.write_bytes(b""), "zip"),
    ],
)
def test_files_that_are_no_such_row(tmp_path: Path, write: Callable[[Path], object], expected: str) -> None:
    folder = drafter(tmp_path, "dspark")
    write(folder / MASK_FILE)
    text = message(folder)
    assert MASK_FILE in text and expected in text and not Path("/tmp/executed-by-a-pickle").exists()


def test_a_damaged_file_is_a_message_whatever_its_damage(tmp_path: Path) -> None:
    """Each byte of a good file changed in turn: either the same values, or a message."""
    torch.save(ROW[:4].clone(), tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    path = tmp_path / "bad.pt"
    read = 0
    for place in range(0, len(good), 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x15]) + good[place + 1 :])
        try:
            read_torch_file(path)
            read += 1
        except ExportError as error:
            assert "bad.pt" in str(error)
    assert 0 < read < len(good) // 3


# --- vocabularies ---


@pytest.mark.parametrize("vocab", [600, 631, 704])
def test_a_plain_drafter_fits_a_padded_or_trimmed_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], vocab: int
) -> None:
    """It has no row for each token: the bytes are those of a config with the target's number."""
    equal = packed(folder_of(tmp_path / "a", "dflash", set_key(vocab_size=640)), tmp_path / "equal")
    other = packed(folder_of(tmp_path / "b", "dflash", set_key(vocab_size=vocab)), tmp_path / "other")
    for name in ("dflash2.onnx", "dflash2.onnx.data", "genai_config.json"):
        assert (equal / name).read_bytes() == (other / name).read_bytes()
    assert f"its vocab_size is {vocab}, the target's 640" in capsys.readouterr().out


def test_a_mask_token_beyond_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def beyond(data: Json, tensors: Tensors) -> None:
        data["vocab_size"], data["dflash_config"]["mask_token_id"] = 704, 700

    folder_of(tmp_path / "d", "dflash", beyond)
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options"]
    text = refused(capsys, *arguments, f"drafter_path={tmp_path / 'd'}")
    assert "mask_token_id" in text and "700" in text and "639" in text


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_rows_for_each_token_must_be_as_many(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    drafter(tmp_path / "d", kind, top(vocab_size=704))
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options"]
    text = refused(capsys, *arguments, f"drafter_path={tmp_path / 'd'}")
    assert "704, 64 more than the target's 640" in text and "resize" in text


# --- inspect ---


def test_inspect_without_a_block_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_as("TorchSpec", "dflash", tmp_path)
    assert main(["inspect", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "an export needs drafter_block_size=N" in said and "of a block of" not in said
    with pytest.raises(ExportError, match="block_size"):
        run_export(
            BuildOptions(output=tmp_path / "out", precision="bf16", provider="cuda", input=TINY, drafter_path=folder)
        )
