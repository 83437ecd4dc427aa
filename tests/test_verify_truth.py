"""verify tells the truth: what it does not compare it does not pass, and it harms nothing outside its folder."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from draftsmith.verify.checks import Check, Results, Verdict, Worst, coloured
from draftsmith.verify.protos import json_differences, message_differences
from draftsmith.verify.target import relative
from tests.checkpoints import TINY
from tests.drafters import drafter
from tests.faults import Fault
from tests.faults.trying import Pair, try_fault
from tests.faults.unseen import UNSEEN, stored
from tests.runtime import export
from tests.verifying import DFLASH2, TARGET, command, edit_json, failed, named, proof

# --- verdicts ---


def test_what_is_no_number_fails_and_so_does_nothing() -> None:
    results, nothing = Results(lambda check: None), Worst()
    assert results.compared("nothing", "", nothing, 1.0).verdict is Verdict.FAILED
    for value in (math.nan, math.inf, -math.inf):
        worst = Worst()
        for error in (0.0, value, 0.5):
            worst.add(error)
        assert results.compared("a", "", worst, 1e30).verdict is Verdict.FAILED
    assert results.compared("b", "", Worst(0.5), 0.5).verdict is Verdict.PASSED
    assert results.stated("c", "of 0 candidates", [], 0).verdict is Verdict.FAILED
    assert results.stated("d", "of 1 candidate", [], 1).verdict is Verdict.PASSED


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_relative_of_what_is_no_number(value: float) -> None:
    good, bad = np.ones(4, np.float32), np.array([1, 1, value, 1], np.float32)
    assert relative(good, good) == 0.0
    assert relative(bad, good) == relative(good, bad) == relative(bad, bad) == math.inf


def test_the_verdict_on_the_whole() -> None:
    results = Results(lambda check: None)
    assert Results().verdict is Verdict.INCOMPLETE  # nothing was done
    results.stated("a", "", [])
    assert results.verdict.name == "PASSED"
    results.incomplete("b", "not compared")
    assert results.verdict.name == "INCOMPLETE"
    with results.guarded("c"):
        raise ValueError("broken\nmore")
    assert results.failed[-1] == Check("c", "stopped: broken", Verdict.FAILED)
    assert results.verdict.name == "FAILED" and results.summary() == "1 passed, 1 incomplete, 1 failed"


def test_a_check_shows_no_control_characters() -> None:
    text = str(Check("names", "\x1b[2Jgone\x07\u202e\nline two", Verdict.FAILED))
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text and len(text.splitlines()) == 2


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coloured("FAILED  x", Verdict.FAILED) == "FAILED  x"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    texts = {coloured("word rest", verdict) for verdict in Verdict}
    assert len(texts) == 3 and all(text.endswith("\x1b[0m rest") for text in texts)
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("word rest", Verdict.PASSED) == "word rest"


def test_exit_statuses(
    pairs: dict[str, Pair], copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = pairs["dflash2"].export
    status, out, _ = command(capsys, good, "--files")
    assert status == 0 and "The proof is incomplete" in out
    status, out, _ = command(capsys, good, "--files", "--strict")
    assert status == 3 and "incomplete  what would be written" in out
    (copy / "tokenizer.json").unlink()
    status, out, _ = command(capsys, copy, "--files", "--strict")
    assert status == 1 and "tokenizer.json is missing" in out
    assert command(capsys, good.parent / "nowhere")[0] == 2
    monkeypatch.setattr("draftsmith.verify.run.open_export", lambda path: 1 / 0)
    status, _, err = command(capsys, good)
    assert status == 70 and "ZeroDivisionError" in err


# --- what was asked for, and what is there ---


def test_a_drafter_that_is_not_there(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = export(TINY, tmp_path / "alone")
    status, text, _ = command(capsys, out, "--drafter", DFLASH2, "--files")
    assert status == 1 and "nothing was compared with what --drafter names" in text
    for folder in (out, copy):
        status, _, err = command(capsys, folder, "--drafter", tmp_path / "nowhere", "--files")
        assert status == 2 and "does not exist" in err


@pytest.mark.parametrize("name", ["model.onnx.data", "tokenizer_config.json", "generation_config.json"])
def test_a_listed_file_is_missing(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert f"{name} is missing" in named(proof(copy), "list of files").what


def test_files_that_others_added(copy: Path) -> None:
    (copy / "README.md").write_text("a model card")
    results = proof(copy, TARGET, DFLASH2)
    assert "README.md is not part of it" in named(results, "list of files").what and not results.failed
    (copy / "added_tokens.json").write_text("{}")
    results = proof(copy, TARGET, DFLASH2)
    assert failed(results) == ["list of files", "tokenizer as written"]


def test_without_its_list_an_export_of_ours_fails(copy: Path) -> None:
    (copy / "draftsmith.json").unlink()
    assert failed(proof(copy)) == ["list of files"]


def test_another_version_is_incomplete_where_it_differs(copy: Path) -> None:
    edit_json(copy / "draftsmith.json", lambda manifest: manifest.update(version="0.0.9"))
    results = proof(copy, TARGET, DFLASH2)
    assert not results.failed and "version is '0.0.9'" in named(results, "options as recorded").what
    assert named(results, "weights as written").verdict is Verdict.PASSED
    stored("model.layers.4.mlp.down_proj", lambda array: array.fill(0))(copy)
    check = named(proof(copy, TARGET, DFLASH2), "weights as written")
    assert check.verdict is Verdict.INCOMPLETE and "version 0.0.9 wrote other files" in check.what


def test_options_that_make_no_export(copy: Path) -> None:
    edit_json(copy / "draftsmith.json", lambda manifest: manifest["options"].update(context_length=10**9))
    check = named(proof(copy, TARGET, DFLASH2), "what would be written")
    assert check.verdict is Verdict.FAILED and "longer than the checkpoint's" in check.what


def test_another_tool_is_incomplete(copy: Path) -> None:
    for path in (copy / "model.onnx", copy / "dflash2.onnx"):
        model = onnx.load(path, load_external_data=False)
        model.producer_name = "another"
        onnx.save(model, path)
    (copy / "draftsmith.json").unlink()
    results = proof(copy, TARGET, DFLASH2)
    check = named(results, "what would be written")
    assert check.verdict is Verdict.INCOMPLETE and "weights, graphs, configuration, tokenizer" in check.what
    assert not results.failed


# --- everything is compared ---


@pytest.mark.parametrize("fault", UNSEEN, ids=lambda fault: fault.name)
def test_faults_that_no_short_run_shows(pairs: dict[str, Pair], fault: Fault) -> None:
    assert try_fault(pairs[fault.kinds[-1]], fault, run=False)


def test_the_target_alone_is_compared_without_its_drafter(copy: Path) -> None:
    results = proof(copy, TARGET)
    assert not results.failed and "--drafter" in named(results, "the drafter's files").what
    stored("cos", lambda array: array[900:901].fill(0.5))(copy)
    assert failed(proof(copy, TARGET)) == ["weights as written"]
    edit_json(copy / "genai_config.json", lambda config: config["model"].update(eos_token_id=[1]))
    assert "configuration as written" in failed(proof(copy, TARGET))


def test_checkpoints_may_have_moved(copy: Path, tmp_path: Path) -> None:
    target, source = (shutil.copytree(folder, tmp_path / folder.name) for folder in (TARGET, DFLASH2))
    edit_json(copy / "draftsmith.json", lambda manifest: manifest["options"].update(drafter_path="/another/machine"))
    results = proof(copy, target, source)
    names = {"graphs as written", "weights as written", "configuration as written", "tokenizer as written"}
    assert {check.name for check in results.checks if check.verdict is Verdict.PASSED} >= names
    assert failed(results) == ["list of files"] or not results.failed  # the list itself has another size, no entry


OPTIONS: list[tuple[tuple[str, ...], str, str]] = [
    ((), "fp32", "cpu"),
    (("include_hidden_states=true", "prune_lm_head=false", "context_length=64"), "fp16", "cuda"),
    (("use_paged_attention=true", "num_blocks=64", "prefix_caching=true", "max_batch_size=3"), "bf16", "cuda"),
    (("use_paged_attention=true", "gpu_utilization_factor=0.35", "aux_hidden_state_layers=1,8"), "fp16", "cuda"),
    (("drafter_path", "dflash2_num_draft_tokens=3", "paged_chunk_size=128"), "bf16", "cuda"),
    (("dspark_path", "dspark_top_k=8", "max_draft_tokens=4", "state_update_capacity=6"), "fp16", "cuda"),
]


@pytest.mark.parametrize(("options", "precision", "provider"), OPTIONS)
def test_all_options_are_recorded(tmp_path: Path, options: tuple[str, ...], precision: str, provider: str) -> None:
    """What is planned from the record is the export itself, to the byte."""
    path = next((option for option in options if option.endswith("_path")), None)
    source = drafter(tmp_path / "d", "dspark" if path == "dspark_path" else "dflash2") if path else None
    given = [f"{option}={source}" if option == path else option for option in options]
    out = export(TINY, tmp_path / "out", *given, precision=precision, provider=provider)
    results = proof(out, TINY, source)
    assert not results.failed and named(results, "options as recorded").verdict is Verdict.PASSED
    assert [check.name for check in results.checks if check.verdict is Verdict.INCOMPLETE] == ["numbers"]


def test_what_a_message_differs_in() -> None:
    def model(group: int | None = None) -> onnx.ModelProto:
        node = onnx.helper.make_node("Conv", ["x"], ["y"], name="conv", group=group)
        return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))

    assert not list(message_differences(model(group=1), model(group=1)))
    assert list(message_differences(model(group=2), model(group=1))) == [
        "graph.node[conv].attribute[group].i is 2, would be 1"
    ]
    assert list(message_differences(model(), model(group=1))) == ["graph.node[conv].attribute[group] is missing"]
    other = model(group=1)
    other.ParseFromString(other.SerializeToString() + b"\xfa\x7f\x01a")  # a field that ONNX does not have
    assert "not of ONNX" in next(message_differences(other, model(group=1)))


@pytest.mark.parametrize(
    ("found", "wanted", "line"),
    [
        ({"a": 1}, {"a": True}, "a is 1, would be True"),
        ({"a": 1.0}, {"a": 1}, "a is 1.0, would be 1"),
        ({}, {"a": {"b": 1}}, "a is missing, would be {'b': 1}"),
        ({"a": [1, 2], "b": 0}, {"a": [1, 3]}, "a[1] is 2, would be 3"),
        ({"a": [1]}, {"a": [1, 2]}, "a is [1], would be [1, 2]"),
        ({"b": None}, {}, "b should not be there: None"),
    ],
)
def test_what_json_differs_in(found: Any, wanted: Any, line: str) -> None:
    assert next(json_differences(found, wanted)) == line and not list(json_differences(wanted, wanted))
