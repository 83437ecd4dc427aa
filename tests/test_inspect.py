"""``draftsmith inspect``: what a checkpoint is, who made it, and what becomes of its keys; and the page about both."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from drafters.checkpoint.dialects import DIALECTS
from draftsmith.cli import main
from scripts.make_producer_table import PAGE, page
from tests.checkpoints import TINY, variant
from tests.dialects import PAIRS, WRITERS, family, with_reduced_vocabulary, write_as
from tests.drafters import drafter, own, top
from tests.synthetic import shapes, write_headers
from tests.test_draft_beyond import folder_of
from tests.tiny_drafter import Tensors

TITLES = {dialect.name: dialect.title for dialect in DIALECTS}

# How Python writes values, which no user of the command needs to know.
PYTHON = re.compile(r"\b(True|False|None)\b|\w\(\w+=|[(\[{]'|\(\d+,\)|\bobject at 0x|<class|\.\.\.}")


def inspected(capsys: pytest.CaptureFixture[str], folder: Path, *options: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main(["inspect", str(folder), *options]) == status
    out, err = capsys.readouterr()
    assert (err == "") == (status == 0) and "Traceback" not in err
    return out + err


@pytest.mark.parametrize(("producer", "kind"), PAIRS)
def test_a_drafter_of_each_producer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, producer: str, kind: str
) -> None:
    options = ("--block-size", "8") if producer == "TorchSpec" else ()
    text = inspected(capsys, write_as(producer, kind, tmp_path), *options)
    title = {"dflash": "DFlash", "dflash2": "DFlash 2", "dspark": "DSpark"}[family(kind)]
    for part in (
        f"a {title} drafter, by",
        f"Made by   {TITLES[WRITERS[producer][1]]}, by",
        "Taps      2, 4, 6:",
        "Honoured:",
    ):
        assert part in text


def test_each_value_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = inspected(capsys, write_as("speculators", "dspark", tmp_path))
    lines = {line.split()[0]: line for line in text.split("Config")[1].splitlines() if line.startswith("  ")}
    assert "from aux_hidden_state_layer_ids" in lines["target_layer_ids"] and " 1, 3, 5 " in lines["target_layer_ids"]
    assert "from transformer_layer_config.hidden_size" in lines["hidden_size"]
    text = inspected(capsys, write_as("speculators, flat", "dspark", tmp_path / "flat"))
    assert "block_size, left out: the default of vLLM speculators, 8" in text


def test_what_has_no_effect_and_what_is_not_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = inspected(capsys, drafter(tmp_path, "dspark", after=top(num_anchors=512, merged_by="me")))
    effects = next(line for line in text.splitlines() if line.startswith("No effect: "))
    assert "num_anchors" in effects and "model_type" in effects and "markov_rank" not in effects
    assert 'Not known:\n  merged_by = "me"' in text


def test_what_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = inspected(capsys, drafter(tmp_path, "dspark", after=own(attention_value_scale=2.0)), status=2)
    assert "a MiMo drafter" in text
    text = inspected(capsys, drafter(tmp_path / "b", "dspark", after=top(mlp_bias=True)), status=2)
    assert "Refused:\n  mlp_bias = true  (biases of the feed-forward parts)" in text and "error: " in text


def test_what_an_export_would_refuse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def drop(tensors: Tensors) -> None:
        del tensors["layers.1.self_attn.k_norm.weight"]

    text = inspected(capsys, drafter(tmp_path, "dspark", tensors=drop), status=2)
    assert "missing (1)" in text and "layers.1.self_attn.k_norm.weight" in text


def test_a_part_of_the_vocabulary(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = inspected(capsys, folder_of(tmp_path, "dspark", with_reduced_vocabulary))
    assert "from draft_vocab_size" in text and "320" in text


def test_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    text = inspected(capsys, TINY)
    for part in (
        "a Qwen 3.5 target",
        "text_config.rms_norm_eps = 1e-06",
        "the head is lm_head.weight",
        "all 132 are read",
    ):
        assert part in text


def test_a_target_that_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = variant(tmp_path / "t", config=lambda data: data["text_config"].update(num_experts=8))
    text = inspected(capsys, target, status=2)
    assert "Refused:\n  text_config.num_experts = 8  (a mixture of experts)" in text


@pytest.mark.parametrize(
    ("architecture", "rename"),
    [
        ("LlamaForCausalLM", ("", "")),
        ("Qwen3ForCausalLM", ("model.language_model.", "model.")),
        ("Gemma3ForConditionalGeneration", ("model.language_model.", "language_model.model.")),
        ("Qwen3_5MoeForConditionalGeneration", ("", "")),
        ("GPT2LMHeadModel", ("model.language_model.embed_tokens", "wte")),
        (None, ("", "")),
    ],
)
def test_a_target_that_is_not_supported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, architecture: str | None, rename: tuple[str, str]
) -> None:
    """It is no drafter, and nothing speaks of one."""

    def change(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.replace(*rename, 1)] = tensors.pop(name)

    names = [architecture] if architecture else None
    target = variant(tmp_path / "t", config=lambda data: data.update(architectures=names), tensors=change)
    text = inspected(capsys, target, status=2)
    assert "a language model that is not exported" in text and "drafter" not in text.lower()
    assert (architecture or "no architecture is named") in text and "architectures" in text.split("where:")[1]


def test_a_drafter_with_an_embedding_of_its_own_is_a_drafter(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = drafter(tmp_path, "dflash2", after=top(architectures=["SomeForCausalLM"]), tensors=with_own_tables)
    assert "a DFlash 2 drafter" in inspected(capsys, folder, status=0)


def with_own_tables(tensors: Tensors) -> None:
    for name in ("embed_tokens.weight", "lm_head.weight"):
        tensors[name] = np.zeros((640, 128), ml_dtypes.bfloat16)


@pytest.mark.parametrize(("producer", "kind"), PAIRS)
def test_no_value_is_written_as_python_writes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, producer: str, kind: str
) -> None:
    options = ("--block-size", "8") if producer == "TorchSpec" else ()
    text = inspected(capsys, write_as(producer, kind, tmp_path, yarn=True), *options)
    assert [line for line in text.splitlines() if PYTHON.search(line)] == []


def test_no_value_of_a_target_is_written_as_python_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line for line in inspected(capsys, TINY).splitlines() if PYTHON.search(line)] == []


def test_what_objects_hold_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nested = {"name": "x", "inner": {"depth": 2, "list": [{"a": None}]}, "empty": {}}
    text = inspected(capsys, drafter(tmp_path, "dspark", after=top(merged=nested)))
    assert (
        'Not known:\n  merged:\n    name = "x"\n    inner:\n      depth = 2\n      list = [{"a": null}]\n    empty = {}'
        in text
    )
    assert "  rope_parameters:  (the rotary tables)\n" in text and "    rope_theta = 1000000.0" in text
    assert "text_config.rope_parameters:" in (text := inspected(capsys, TINY)) and "    mrope_section = [" in text


@pytest.mark.parametrize("key", ["aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"])
def test_taps_that_disagree(capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str) -> None:
    """The same numbers under two keys are other layers: the message says which, and is not of two equal lists."""
    text = inspected(capsys, drafter(tmp_path, "dflash2", after=own(**{key: [1, 3, 5]})), status=2)
    found = text.split("found:")[1].split("accepted:")[0].strip()
    first, second = found.split(" and ")
    assert first == "[1, 3, 5] (the outputs of 1, 3, 5)"
    assert second == "[1, 3, 5], the inputs of these layers (the outputs of 0, 2, 4)"


def test_producers_have_their_true_names() -> None:
    assert len(set(TITLES.values())) == len(DIALECTS)
    for name in (
        "z-lab",
        "incoai",
        "DeepSpec",
        "SpecForge",
        "Speculators",
        "TorchSpec",
        "NVIDIA Model",
        "NeMo Automodel",
    ):
        assert sum(name in title for title in TITLES.values()) == 1


def test_neither(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "does not exist" in inspected(capsys, tmp_path / "nowhere", status=2)


def test_a_large_target_is_checked_by_its_headers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its weights are a hole in the file. benchmarks/checks_time.py has the time that it takes."""
    folder = write_headers(tmp_path / "t", 64)
    assert f"all {len(shapes(64))} are read" in inspected(capsys, folder)


def test_the_page_is_up_to_date() -> None:
    """Else run python -m scripts.make_producer_table."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_a_reader_that_leaves_early() -> None:
    """``draftsmith inspect FOLDER | head`` ends without a word."""
    command = f"set -o pipefail; {sys.executable} -m draftsmith.cli inspect {TINY} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False
    )
    assert "tensors" in done.stdout and not done.stderr
