"""verify tells the truth: what it does not compare it does not pass, and it harms nothing outside its folder."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file

from draftsmith.cli import main
from draftsmith.validation.widen import needed_config
from draftsmith.verify import machine
from draftsmith.verify.checks import Check, Results, Verdict, Worst, coloured
from draftsmith.verify.folder import open_export
from draftsmith.verify.machine import MachineError, available_memory
from draftsmith.verify.protos import json_differences, message_differences
from draftsmith.verify.run import prove, verify
from draftsmith.verify.target import chunks, relative
from tests.checkpoints import TINY
from tests.drafters import drafter
from tests.faults import Fault
from tests.faults.trying import PAIR, Pair, make_pair, try_fault
from tests.faults.unseen import UNSEEN, stored
from tests.runtime import export

TARGET, DFLASH2, DSPARK = PAIR / "target", PAIR / "dflash2", PAIR / "dspark"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    work = tmp_path_factory.mktemp("pairs")
    first = make_pair(work, "dflash2")
    yield {"dflash2": first, "dspark": make_pair(work, "dspark", target=first.target)}


@pytest.fixture
def copy(pairs: dict[str, Pair], tmp_path: Path) -> Path:
    """A copy of a good export, to be spoilt."""
    return shutil.copytree(pairs["dflash2"].export, tmp_path / "copy")


def proof(folder: Path, target: Path | None = None, source: Path | None = None, run: bool = False) -> Results:
    results = Results(lambda check: None)
    verify(folder, target, source, results, run)
    return results


def named(results: Results, name: str) -> Check:
    return next(check for check in results.checks if check.name == name)


def failed(results: Results) -> list[str]:
    return [check.name for check in results.failed]


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["verify", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


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


# --- ranges, short contexts ---


def louder(folder: Path, factor: float) -> Path:
    """The bundled target with residual streams that are larger by a factor, which the norms take out again."""
    shutil.copytree(TINY, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("mlp.down_proj.weight", "out_proj.weight", "o_proj.weight")) and "layers" in name:
            tensors[name] = (tensor.astype(np.float32) * factor).astype(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(("precision", "verdict"), [("fp16", Verdict.FAILED), ("bf16", Verdict.PASSED)])
def test_values_beyond_half_precision(tmp_path: Path, precision: str, verdict: Verdict) -> None:
    target = louder(tmp_path / "t", 4e5)
    out = export(target, tmp_path / "out", "use_paged_attention=true", precision=precision, provider="cuda")
    results = proof(out, target, run=True)
    check = named(results, "ranges")
    assert check.verdict is verdict and check.error is not None and check.error > 65504
    assert named(results, "logits").verdict is Verdict.PASSED  # in float32 it computes what it should
    places = [place for place, _ in results.figures["ranges"]]
    assert places == ["embedding", *(f"layer {i}" for i in range(8)), "head"]


def test_ranges_are_the_largest_values(tmp_path: Path) -> None:
    """Against transformers: no stream is larger than what the layer that it leaves is said to hold."""
    out = export(TINY, tmp_path / "out")
    results = Results(lambda check: None)
    opened = open_export(out)
    from draftsmith.verify.sources import open_target
    from draftsmith.verify.target import random_ids

    target = open_target(TINY, opened)
    prove(opened, target, None, results)
    ranges = dict(results.figures["ranges"])
    streams = target.expected(random_ids(target.config.vocab_size, 1, 80)).streams
    for layer, stream in enumerate(streams[1:-1]):  # the last one is the final norm's output
        assert float(np.abs(stream).max()) <= ranges[f"layer {layer}"] * (1 + 1e-5)
    assert np.isclose(float(np.abs(streams[0]).max()), ranges["embedding"], rtol=1e-5)


@pytest.mark.parametrize("context", [1, 5, 16, 64])
@pytest.mark.parametrize("kind", ["dense", "packed", "dflash2", "dspark"])
def test_short_contexts(tmp_path: Path, kind: str, context: int) -> None:
    options = [f"context_length={context}"] + ["use_paged_attention=true"] * (kind == "packed")
    source = {"dflash2": DFLASH2, "dspark": DSPARK}.get(kind)
    options += [f"drafter_path={source}"] if source else []
    precision, provider = ("fp32", "cpu") if kind == "dense" else ("bf16", "cuda")
    out = export(TARGET, tmp_path / "out", *options, precision=precision, provider=provider)
    results = proof(out, TARGET, source, run=True)
    assert not results.failed
    short = context < 2 or (source is not None and context < 16)
    assert results.verdict is (Verdict.INCOMPLETE if short else Verdict.PASSED)


@pytest.mark.parametrize("length", range(1, 30))
def test_chunks(length: int) -> None:
    parts = chunks(length, 8)
    assert sum(parts) == length and len(parts) == min(length, 8) and min(parts) > 0


# --- it harms nothing ---


def tree(folder: Path) -> dict[str, str]:
    """All files below a folder, with what is in them."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["../other/model.onnx", "/tmp/model.onnx", "sub/model.onnx", "..", "", "a\\b"])
def test_a_file_name_is_plain(copy: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(copy, tmp_path / "other")
    edit_json(copy / "genai_config.json", lambda config: config["model"]["decoder"].update(filename=name))
    before = tree(tmp_path)
    status, _, err = command(capsys, copy)
    assert status == 2 and "outside the folder" in err and tree(tmp_path) == before
    with pytest.raises(ValueError, match="not the name of a file"):
        needed_config(json.loads((copy / "genai_config.json").read_text()))


def test_weights_lie_in_the_folder(copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / "model.onnx.data", tmp_path / "elsewhere.data")
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../elsewhere.data"
    onnx.save(model, copy / "model.onnx")
    before = tree(tmp_path)
    results = proof(copy, TARGET, DFLASH2, run=True)
    assert "not a file's plain name" in named(results, "files").what and tree(tmp_path) == before


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx.data", "notes"])
def test_links_that_lead_outside(copy: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(secret)
    status, _, err = command(capsys, copy)
    assert status == 2 and "leads out of the export" in err and str(copy / name) in err


def test_the_hubs_cache_is_made_of_links(copy: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1234", tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in copy.iterdir():
        shutil.move(path, blobs / f"hash-{path.name}")
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / f"hash-{path.name}")
    assert not proof(snapshot, TARGET, DFLASH2).failed


@pytest.mark.parametrize("key", ["custom_ops_library", "enable_profiling", "session.optimized_model_filepath"])
@pytest.mark.parametrize("role", ["decoder", "dflash2"])
def test_no_foreign_code_runs_and_nothing_is_written(copy: Path, tmp_path: Path, role: str, key: str) -> None:
    def change(config: dict[str, Any]) -> None:
        config["model"][role]["session_options"][key] = str(tmp_path / "foreign.so")

    edit_json(copy / "genai_config.json", change)
    before = tree(tmp_path)
    results = proof(copy, run=True)
    assert "foreign code" in failed(results) and f"{role}.session_options.{key}" in named(results, "foreign code").what
    assert named(results, "Engine with drafts").verdict is Verdict.PASSED  # it was run, without that
    assert tree(tmp_path) == before


def test_other_models_of_a_configuration_are_left_out(copy: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["model"]["vision"] = {"filename": "../../vision.onnx"}
        config["model"]["decoder"]["pipeline"] = []

    edit_json(copy / "genai_config.json", change)
    check = named(proof(copy), "left out")
    assert check.verdict is Verdict.INCOMPLETE and "model.vision, model.decoder.pipeline" in check.what


# --- trouble of the machine ---


def test_no_room_is_said_first(
    pairs: dict[str, Pair], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    status, out, err = command(capsys, pairs["dflash2"].export)
    assert status == 2 and "not enough room" in err and not out
    assert command(capsys, pairs["dflash2"].export, "--files")[0] == 0


def test_too_little_memory_is_said_first(
    pairs: dict[str, Pair], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (available_memory() or 0) > 10**8
    monkeypatch.setattr(machine, "available_memory", lambda: 10**6)
    status, out, err = command(capsys, pairs["dflash2"].export)
    assert status == 2 and "not enough memory" in err and "--files" in err and not out


@pytest.mark.parametrize("place", ["nowhere/report.html", "."])
def test_a_report_that_cannot_be_written_is_said_first(
    pairs: dict[str, Pair], tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(capsys, pairs["dflash2"].export, "--report", tmp_path / place)
    assert status == 2 and "report cannot be written" in err and not out and not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EDQUOT])
def test_errors_of_the_machine_are_no_verdict(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/tmp/some file")

    monkeypatch.setattr("draftsmith.verify.copies.widen", broken)
    status, out, err = command(capsys, copy)
    assert status == 2 and "could not be finished on this machine" in err and "FAILED" not in out


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_no_more_memory_is_no_verdict(error: Exception) -> None:
    results = Results(lambda check: None)
    with pytest.raises(MachineError), results.guarded("logits"):
        raise error
    assert not results.checks
    with results.guarded("logits"):
        raise OSError(errno.ENOENT, "no such file")  # that of an export may be missing
    assert results.failed


def test_types_are_followed(pairs: dict[str, Pair]) -> None:
    """Only what is stored in 16 bits counts: a Cast to float32 leads out of it, one back into it."""
    from draftsmith.validation.ranges import value_types

    x, y, z, w = (ir.Value(name=name) for name in "xyzw")
    x.type = ir.TensorType(ir.DataType.FLOAT16)
    nodes = [
        ir.Node("", "Cast", [x], [ir.AttrInt64("to", ir.DataType.FLOAT)], outputs=[y]),
        ir.Node("", "Exp", [y], outputs=[z]),
        ir.Node("", "Cast", [z], [ir.AttrInt64("to", ir.DataType.FLOAT16)], outputs=[w]),
    ]
    types = value_types(ir.Graph([x], [w], nodes=nodes, name="g"))
    half, single = ir.DataType.FLOAT16, ir.DataType.FLOAT
    assert [types[name] for name in "xyzw"] == [half, single, single, half]
