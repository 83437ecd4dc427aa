"""The tap of the target's last layer, before or behind the final norm: as the drafter's producer captures it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from drafters.checkpoint.dialects import DIALECTS
from draftsmith.validation.packed_session import PackedSession
from draftsmith.validation.reference import entering_streams, load_reference, operator_epsilon
from draftsmith.validation.widen import widen
from draftsmith.verify.checks import Results
from draftsmith.verify.drafter import check_drafter
from draftsmith.verify.folder import open_export
from draftsmith.verify.running import Running
from draftsmith.verify.sources import open_drafter, open_target
from draftsmith.verify.target import check_target, relative
from tests.checkpoints import TINY
from tests.dialects import write_as
from tests.drafters import drafter, own
from tests.refusals import refused
from tests.runtime import export, random_ids
from tests.test_drafter_reading import changed, packed
from tests.tiny_drafter import Json


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
