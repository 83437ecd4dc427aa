"""``draftsmith inspect``: what a checkpoint is, who made it, and what becomes of its keys; and the page about both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from draftsmith.cli import main
from scripts.make_producer_table import PAGE, page
from tests.checkpoints import TINY, variant
from tests.dialects import PAIRS, WRITERS, family, with_reduced_vocabulary, write_as
from tests.drafters import drafter, own, top
from tests.synthetic import shapes, write_headers
from tests.test_draft_beyond import folder_of
from tests.tiny_drafter import Tensors


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
    for part in (f"a {title} drafter, by", f"Made by   {WRITERS[producer][1]}, by", "Taps      2, 4, 6:", "Honoured:"):
        assert part in text


def test_each_value_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = inspected(capsys, write_as("speculators", "dspark", tmp_path))
    lines = {line.split()[0]: line for line in text.split("Config")[1].splitlines() if line.startswith("  ")}
    assert "from aux_hidden_state_layer_ids" in lines["target_layer_ids"] and "(1, 3, 5)" in lines["target_layer_ids"]
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
