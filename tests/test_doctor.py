"""``draftsmith doctor`` in an environment for the CPU, and what it says of one for a GPU that is made up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from draftsmith.cli import main
from draftsmith.cuda_driver import Driver
from draftsmith.doctor.export import check_graph, check_memory, check_versions
from draftsmith.doctor.findings import Findings, State
from draftsmith.doctor.probe import without_weights
from draftsmith.doctor.run import doctor, run_probe
from draftsmith.verify.folder import open_export
from tests.checkpoints import TINY
from tests.faults.trying import PAIR
from tests.output_folders import read
from tests.runtime import export
from tests.test_cuda_runtime import B200, GOOD, H100, with_gpus


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed export with a drafter."""
    folder = tmp_path_factory.mktemp("doctor") / "packed"
    options = (f"drafter_path={PAIR / 'dspark'}", "context_length=1024")
    return export(PAIR / "target", folder, *options, precision="bf16", provider="cuda")


def changed(folder: Path, copy: Path, change: Callable[[onnx.NodeProto], None], name: str = "model.onnx") -> Path:
    """A copy of an export, a graph's nodes changed."""
    copy.mkdir()
    for path in folder.iterdir():
        shutil.copyfile(path, copy / path.name)
    model = onnx.load(folder / name, load_external_data=False)
    for node in model.graph.node:
        change(node)
    (copy / name).unlink()
    onnx.save(model, copy / name)
    return copy


def examined(capsys: pytest.CaptureFixture[str], *arguments: object, status: int) -> str:
    capsys.readouterr()
    assert main(["doctor", *map(str, arguments)]) == status
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return out + err


def test_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    text = examined(capsys, status=0)
    assert "ok       packages: onnxruntime 1." in text and "all is well" in text


def test_an_export_for_the_cpu(capsys: pytest.CaptureFixture[str], tiny_export: Path) -> None:
    before = read(tiny_export)
    text = examined(capsys, tiny_export, status=0)
    assert "ok       model.onnx: loaded for the CPU" in text
    assert read(tiny_export) == before


def test_an_export_for_a_gpu(capsys: pytest.CaptureFixture[str], packed: Path) -> None:
    """Its graphs are taken, but not by a build that runs them."""
    text = examined(capsys, packed, status=1)
    assert "onnxruntime is a build without CUDA" in text and "pip install '.[cuda]'" in text
    assert "known to onnxruntime 1.31.1" in text
    for name in ("model.onnx", "dspark.onnx"):
        assert f"ok       {name}: operators, types and attributes are taken" in text
    assert text.count("WRONG") == 1


def test_json(capsys: pytest.CaptureFixture[str], packed: Path) -> None:
    found = json.loads(examined(capsys, packed, "--json", status=1))
    assert not found["well"] and found["packages"]["onnxruntime"].startswith("1.")
    assert {item["name"]: item["state"] for item in found["findings"]}["dspark.onnx"] == "ok"


def test_no_export(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "The folder holds no export" in examined(capsys, tmp_path, status=2)


def old_gates(node: onnx.NodeProto) -> None:
    """Gates as 1.32 takes them, and 1.31.1 does not."""
    if node.op_type == "GatedDeltaNet":
        next(a for a in node.attribute if a.name == "gate_activation").s = b"softplus"


def low_gates(node: onnx.NodeProto) -> None:
    """Decay and beta in 16 bits: the casts to float32 become casts to bfloat16."""
    if node.op_type == "Cast" and "linear_attn" in node.name:
        node.attribute[0].i = onnx.TensorProto.BFLOAT16


def conv_mode(node: onnx.NodeProto) -> None:
    """A mode of the convolution that only 1.32 has."""
    if node.op_type == "VarlenCausalConvWithState":
        node.attribute.append(helper.make_attribute("group_size", 1))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (old_gates, 'GatedDeltaNet: gate_activation="softplus" (known: none, qwen), in 6 nodes'),
        (low_gates, "GatedDeltaNet: input 4 in BFLOAT16 (known: FLOAT), in 6 nodes"),
        (conv_mode, "VarlenCausalConvWithState: the attribute group_size, in 6 nodes"),
    ],
)
def test_what_1_31_1_does_not_know(
    packed: Path, tmp_path: Path, change: Callable[[onnx.NodeProto], None], part: str
) -> None:
    opened = open_export(changed(packed, tmp_path / "changed", change))
    findings = Findings(tell=lambda finding: None)
    for version in ("1.31.1", "1.32.0"):
        check_versions(opened, version, findings)
    older, newer = findings.items
    assert f"model.onnx: {part}" in older.faults and older.faults[-1].startswith("to do: export again")
    assert newer.state is State.GOOD


def test_an_attribute_that_nobody_knows(capsys: pytest.CaptureFixture[str], packed: Path, tmp_path: Path) -> None:
    """Loading the graph shows it, whatever tables say."""

    def change(node: onnx.NodeProto) -> None:
        if node.op_type == "PagedAttention":
            node.attribute.append(helper.make_attribute("new_thing", 1))

    text = examined(capsys, changed(packed, tmp_path / "changed", change, "dspark.onnx"), status=1)
    line = next(line for line in text.splitlines() if "new_thing" in line)
    assert "WRONG    dspark.onnx: not taken" in text and len(line) < 300  # without the names of all inputs


def test_a_configuration_that_the_runtime_refuses(
    capsys: pytest.CaptureFixture[str], tiny_export: Path, tmp_path: Path
) -> None:
    copy = changed(tiny_export, tmp_path / "copy", lambda node: None)
    config = json.loads((copy / "genai_config.json").read_text())
    config["model"]["no_such_key"] = 1
    (copy / "genai_config.json").unlink()
    (copy / "genai_config.json").write_text(json.dumps(config))
    text = examined(capsys, copy, status=1)
    assert "WRONG    genai_config.json" in text and "no_such_key" in text


def test_weights_are_not_read(capsys: pytest.CaptureFixture[str], tiny_export: Path, tmp_path: Path) -> None:
    """So that a model of any size is looked at in seconds: whether the bytes are right, verify says."""
    copy = changed(tiny_export, tmp_path / "copy", lambda node: None)
    (copy / "model.onnx.data").unlink()
    examined(capsys, copy, status=0)
    model = onnx.load_from_string(without_weights(copy / "model.onnx"))
    assert not any(tensor.external_data for tensor in model.graph.initializer)


def test_a_machine_that_does_not_fit() -> None:
    findings = Findings(tell=lambda finding: None)
    libraries = GOOD.libraries | {"libcufft.so.12": OSError("libcufft.so.12: not found")}
    doctor(None, findings, environment=replace(with_gpus(B200), libraries=libraries))
    wrong = {finding.name: "\n".join(finding.faults) for finding in findings.wrong}
    assert list(wrong) == ["CUDA libraries", "GPU"]
    assert "nvidia-cufft" in wrong["CUDA libraries"] and "B200" in wrong["GPU"]
    assert findings.summary() == "2 things are wrong"


def test_a_runtime_that_does_not_use_the_gpu() -> None:
    """Everything seems to be there, and the runtime, which is the CPU's here, runs nothing on it."""
    findings = Findings(tell=lambda finding: None)
    doctor(None, findings, environment=GOOD)
    assert [finding.name for finding in findings.wrong] == ["kernel on the GPU"]
    assert findings.wrong[0].faults[0]


def test_an_export_that_is_larger_than_the_gpu(packed: Path) -> None:
    findings = Findings(tell=lambda finding: None)
    check_memory(open_export(packed), replace(H100, memory=1 << 20), findings)
    check_memory(open_export(packed), H100, findings)
    assert [finding.state for finding in findings.items] == [State.WRONG, State.GOOD]


@pytest.mark.parametrize(
    ("packed_layout", "left", "faults"),
    [
        (True, {}, []),
        (True, {"Gather": 1}, ["should be on the GPU: 1 Gather"]),
        (False, {"Gather": 1, "Cast": 2}, []),
        (
            False,
            {"Cast": 2, "com.microsoft::GroupQueryAttention": 8},
            ["should be on the GPU: 8 com.microsoft::GroupQ"],
        ),
    ],
)
def test_nodes_on_the_cpu(
    packed: Path, tmp_path: Path, packed_layout: bool, left: dict[str, int], faults: list[str]
) -> None:
    """A dense graph leaves the arithmetic on shapes there, no more; a packed one nothing."""
    folder = packed if packed_layout else export(TINY, tmp_path / "dense", precision="bf16", provider="cuda")
    opened = open_export(folder)
    findings = Findings(tell=lambda finding: None)
    placed = {"CUDAExecutionProvider": {"Gemm": 9}, "CPUExecutionProvider": left}
    check_graph(
        opened,
        opened.decoder,
        {"error": None, "not_implemented": False, "placed": placed},
        cuda=True,
        findings=findings,
    )
    (finding,) = findings.items
    assert [fault[: len(part)] for fault, part in zip(finding.faults, faults, strict=True)] == faults


def test_a_runtime_that_crashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes its own process down, no more."""
    (tmp_path / "onnxruntime.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parent.parent}")
    with pytest.raises(RuntimeError, match=r"has crashed \(SIGABRT"):
        run_probe({})


def test_a_runtime_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libsomething.so: not found')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parent.parent}")
    with pytest.raises(RuntimeError, match=r"cannot be used: ImportError: libsomething\.so: not found"):
        run_probe({})


def test_speculate_says_what_cuda_lacks(capsys: pytest.CaptureFixture[str], packed: Path, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("one")
    assert main(["speculate", str(packed), "--prompts", str(tmp_path / "p"), "--provider", "cuda"]) == 2
    err = capsys.readouterr().err
    assert "onnxruntime is a build without CUDA" in err and "pip install '.[cuda]'" in err and "Traceback" not in err


def test_driver_in_the_figures() -> None:
    findings = Findings(tell=lambda finding: None)
    doctor(None, findings, environment=replace(with_gpus(H100), driver=Driver((12, 4), (H100,))))
    assert findings.figures["driver"] == {"cuda": "12.4"}
    assert findings.figures["gpus"] == [{"name": "H100", "compute_capability": "9.0", "memory": H100.memory}]
