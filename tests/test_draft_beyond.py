"""Beyond the plain case: biases, sinks, tables of the drafter's own, parts of the vocabulary, idle anchor rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from draftsmith.validation.reference import greedy, load_reference, operator_epsilon
from tests.checkpoints import TINY, tie, variant, without_head
from tests.dialects import (
    original,
    with_biases,
    with_reduced_vocabulary,
    with_sinks,
    with_tables,
    write_as,
)
from tests.drafters import alone, sliding, target_table
from tests.nightly import sampled
from tests.refusals import refused
from tests.runtime import export
from tests.test_draft_engine import COUNT, PROMPTS, run
from tests.test_drafters import F16, LIMIT, THREE_STEPS, largest_error
from tests.tiny_drafter import Json, Tensors, make_config, make_tensors, write

Part = Callable[[Json, Tensors], object]


def folder_of(folder: Path, kind: str, *parts: Part) -> Path:
    """A tiny drafter with more than the plain case has."""
    if kind == "dflash":
        layers, own, tensors = original("dflash")
        config = layers | {"architectures": ["DFlashDraftModel"], "dflash_config": own}
    else:
        config = make_config("dflash2" if kind == "dflash2" else "dspark")
        if kind == "gated":
            config["dflash_config"]["markov_head_type"] = "gated"
        tensors = make_tensors(config)
    for part in parts:
        part(config, tensors)
    write(folder, config, tensors)
    return folder


def set_key(**keys: object) -> Part:
    return lambda config, tensors: config.update(keys)


def without_anchor(config: Json, tensors: Tensors) -> None:
    config["sample_from_anchor"] = False


def shifted(config: Json, tensors: Tensors) -> None:
    config["dflash_config"]["shift_label"] = False


def without_markov(config: Json, tensors: Tensors) -> None:
    """DeepSpec's DFlash: rows of a DSpark, without its head."""
    config["architectures"] = ["Qwen3DSparkModel"]
    config["dflash_config"] |= {"markov_rank": 0, "projector_type": None, "markov_head_type": None}
    for name in [name for name in tensors if "markov_head" in name]:
        del tensors[name]


def swa(config: Json, tensors: Tensors) -> None:
    config["dflash_config"] |= {"use_swa": True, "swa_window_size": 40, "causal": False}
    del config["is_causal"]


def window(config: Json, tensors: Tensors) -> None:
    sliding(40)(config)


def mixed(config: Json, tensors: Tensors) -> None:
    sliding(40, "sliding_attention", "full_attention", causal=None)(config)


def capped(config: Json, tensors: Tensors) -> None:
    config["dflash_config"] |= {"output_multiplier": 0.19, "final_logit_softcapping": 0.5}


CASES: dict[str, tuple[str, tuple[Part, ...]]] = {
    "plain DFlash": ("dflash", ()),
    "plain DFlash, window": ("dflash", (mixed,)),
    "plain DFlash, scaled": ("dflash", (capped,)),
    "biases": ("dflash2", (with_biases,)),
    "biases, dspark": ("dspark", (with_biases,)),
    "sinks": ("dflash2", (with_sinks,)),
    "sinks, dspark, window": ("dspark", (with_sinks, window)),
    "sinks and biases": ("dflash", (with_sinks, with_biases)),
    "own tables": ("dflash2", (with_tables,)),
    "own tables, dspark": ("dspark", (with_tables,)),
    "reduced, dspark": ("dspark", (with_reduced_vocabulary,)),
    "reduced, gated": ("gated", (with_reduced_vocabulary,)),
    "reduced, plain DFlash": ("dflash", (with_reduced_vocabulary,)),
    "anchor predicts nothing": ("dspark", (without_anchor,)),
    "anchor predicts nothing, gated": ("gated", (shifted,)),
    "anchor predicts nothing, reduced": ("dspark", (without_anchor, with_reduced_vocabulary)),
    "DeepSpec's DFlash": ("dspark", (without_markov,)),
    "ModelOpt's window": ("dspark", (swa,)),
}


@pytest.mark.parametrize("name", CASES)
def test_scores_and_candidates(tmp_path: Path, name: str) -> None:
    kind, parts = CASES[name]
    made = alone(folder_of(tmp_path / "d", kind, *parts), tmp_path / "out")
    assert largest_error(made, THREE_STEPS) < LIMIT


@pytest.mark.parametrize("name", ["plain DFlash", "own tables", "reduced, dspark", "sinks and biases"])
def test_beside_a_float16_target(tmp_path: Path, name: str) -> None:
    kind, parts = CASES[name]
    made = alone(folder_of(tmp_path / "d", kind, *parts), tmp_path / "out", dtype=F16)
    assert largest_error(made, THREE_STEPS) < LIMIT


def only(name: str) -> Part:
    def part(config: Json, tensors: Tensors) -> None:
        with_tables(config, tensors)
        for other in ("embed_tokens.weight", "lm_head.weight"):
            if other != name:
                del tensors[other]

    return part


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
@pytest.mark.parametrize("tied", [False, True])
def test_one_own_table(tmp_path: Path, name: str, tied: bool) -> None:
    made = alone(folder_of(tmp_path / "d", "dspark", only(name)), tmp_path / "out", tied=tied)
    assert largest_error(made, THREE_STEPS) < LIMIT


def test_what_the_anchors_row_does(tmp_path: Path) -> None:
    """As many drafts as rows, or one fewer; the runtime has a name for each."""
    expected = {
        "plain DFlash": ("dflash", "dflash2", 7),
        "anchor predicts nothing": ("dspark", "dflash2", 7),
        "DeepSpec's DFlash": ("dspark", "dspark", 8),
    }
    for name, (family, kind, drafts) in expected.items():
        config = alone(
            folder_of(tmp_path / name / "d", *CASES[name][:1], *CASES[name][1]), tmp_path / name / "o"
        ).config
        assert (config.family, config.kind, config.num_draft_tokens) == (family, kind, drafts)


# --- exports ---


def exported(folder: Path, kind: str, *parts: Part, options: tuple[str, ...] = (), target: Path = TINY) -> Path:
    folder_of(folder / "d", kind, *parts)
    return export(target, folder / "out", f"drafter_path={folder / 'd'}", *options, precision="bf16", provider="cuda")


def section(out: Path) -> dict[str, Any]:
    model = json.loads((out / "genai_config.json").read_text())["model"]
    return dict(model.get("dflash2") or model["dspark"])


def shared(out: Path) -> list[str]:
    return [entry["name"] for entry in section(out).get("shared_initializers", [])]


def copies(*names: str) -> Part:
    """The target's own tables beside the drafter."""

    def part(config: Json, tensors: Tensors) -> None:
        for name in names:
            kind = {"embed_tokens.weight": "embedding", "lm_head.weight": "head"}[name]
            values = target_table(kind).view(torch.uint8).numpy().view(tensors["fc.weight"].dtype)
            tensors[name] = np.ascontiguousarray(values)

    return part


def test_copies_of_the_targets_tables_are_shared(tmp_path: Path) -> None:
    out = exported(tmp_path / "a", "dspark", copies("embed_tokens.weight", "lm_head.weight"))
    plain = exported(tmp_path / "b", "dspark")
    for name in ("dspark.onnx", "dspark.onnx.data", "genai_config.json"):
        assert (out / name).read_bytes() == (plain / name).read_bytes()


def test_other_tables_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = exported(tmp_path, "dspark", with_tables)
    text = capsys.readouterr().out
    assert "embed_tokens.weight differs from the target's" in text and "lm_head.weight differs" in text
    assert shared(out) == []
    names = set(ir.load(out / "dspark.onnx").graph.initializers)
    assert {"embed_tokens.weight", "lm_head.weight"} <= names and "model.embed_tokens.weight" not in names


def test_one_of_each(tmp_path: Path) -> None:
    def part(config: Json, tensors: Tensors) -> None:
        with_tables(config, tensors)
        copies("lm_head.weight")(config, tensors)

    out = exported(tmp_path, "dflash2", part)
    assert shared(out) == ["lm_head.weight"]


def test_copies_beside_a_tied_target(tmp_path: Path) -> None:
    target = variant(tmp_path / "t", config=tie, tensors=without_head)
    out = exported(tmp_path, "dspark", copies("embed_tokens.weight"), target=target)
    assert shared(out) == ["model.embed_tokens.weight"]


@pytest.mark.parametrize(("kind", "drafts", "window"), [("dflash", 7, 4104), ("dspark", 8, -1)])
def test_config(tmp_path: Path, kind: str, drafts: int, window: int) -> None:
    found = section(exported(tmp_path, kind))
    assert (found["num_draft_tokens"], found["sliding_window"], found["block_size"]) == (drafts, window, 8)
    assert found["selector_top_k"] == 16


def test_the_candidates_of_a_plain_drafter(tmp_path: Path) -> None:
    found = section(exported(tmp_path, "dflash", options=("dflash2_top_k=3", "dflash2_num_draft_tokens=5")))
    assert (found["selector_top_k"], found["num_draft_tokens"], found["block_size"]) == (3, 5, 6)


def test_a_dspark_that_the_runtime_runs_as_dflash_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(tmp_path / "d", "dspark", without_anchor)
    options = (f"dspark_path={tmp_path / 'd'}", "dspark_num_draft_tokens=4", "dspark_top_k=5")
    out = export(TINY, tmp_path / "out", *options, precision="bf16", provider="cuda")
    assert (out / "dflash2.onnx").is_file() and not (out / "dspark.onnx").exists()
    found = section(out)
    assert (found["num_draft_tokens"], found["selector_top_k"], found["block_size"]) == (4, 5, 5)
    assert "Drafter: DSpark, 4 drafts from blocks of 5 rows" in capsys.readouterr().out


# --- options ---


@pytest.mark.parametrize(
    ("producer", "options", "expected"),
    [
        ("TorchSpec", (), ["block_size", "drafter_block_size=N"]),
        ("TorchSpec", ("drafter_block_size=1",), ["'1'", "from 2"]),
        ("SpecForge", ("drafter_block_size=16",), ["drafter_block_size=16", "config.json: block_size", "16 and 8"]),
        ("SpecForge", ("dflash2_top_k=641",), ["dflash2_top_k", "641", "1 to 640"]),
        ("SpecForge", ("dspark_top_k=4",), ["dspark_top_k", "DFlash"]),
    ],
)
def test_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, producer: str, options: tuple[str, ...], expected: list[str]
) -> None:
    write_as(producer, "dflash", tmp_path / "d")
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options"]
    text = refused(capsys, *arguments, f"drafter_path={tmp_path / 'd'}", *options)
    for part in expected:
        assert part in text


def test_the_selector_says_how_many_candidates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_as("z-lab, generation 2", "dflash2", tmp_path / "d")
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda", "--extra_options"]
    text = refused(capsys, *arguments, f"drafter_path={tmp_path / 'd'}", "dflash2_top_k=5")
    assert "selector_top_k" in text and "5, as dflash2_top_k asks for" in text


@pytest.mark.parametrize("option", ["drafter_path", "dflash2_path"])
def test_a_block_size_that_agrees(tmp_path: Path, option: str) -> None:
    write_as("SpecForge", "dflash", tmp_path / "d")
    options = (f"{option}={tmp_path / 'd'}", "drafter_block_size=8")
    assert section(export(TINY, tmp_path / "out", *options, precision="bf16", provider="cuda"))["block_size"] == 8


# --- the engine ---


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    """transformers' greedy tokens."""
    with operator_epsilon():
        model = load_reference(TINY, torch.bfloat16)
        return [greedy(model, torch.tensor([prompt]), COUNT)[0].tolist() for prompt in PROMPTS]


TEXTS = ("plain DFlash", "anchor predicts nothing", "reduced, dspark", "DeepSpec's DFlash")


@pytest.mark.parametrize("name", sampled(TEXTS, every=2))
def test_tokens_are_transformers_own(tmp_path: Path, wanted: list[list[int]], name: str) -> None:
    kind, parts = CASES[name]
    result = run(tmp_path, wanted, folder_of(tmp_path / "d", kind, *parts), "context_length=1024")
    assert result.tokens == wanted
    assert result.drafts_per_proposal == 7
    assert result.count("draft_tokens_proposed") > 6 * result.count("rounds")
