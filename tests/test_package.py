"""A package of graphs: any number of them, each of which may share tensors of any graph before it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxscript import GraphBuilder

from builder.drafter import read
from builder.drafter_graph import drafter_graph
from builder.families import open_target
from builder.options import BuildOptions
from builder.package import GraphPlan, Package, save_package
from builder.plan import Plan, plan
from builder.write import write
from draftsmith.verify.compared import graph_faults, weight_faults
from draftsmith.verify.folder import open_export
from genai_config.sections import BlockDrafter, Decoder, DecoderInputs, DecoderOutputs
from onnxkit.layers.graph import IR_VERSION, empty_graph
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.parameters import Shared
from onnxkit.weights.tensor_plan import Disposition, PlannedTensor, TensorPlan
from tests.checkpoints import TINY
from tests.drafters import drafter

F32 = ir.DataType.FLOAT
WIDTH = 128  # more bytes than those of tensors that stand in the model file


def values(seed: int) -> np.ndarray:
    """Whole numbers, whose sums are exact."""
    return np.random.default_rng(seed).integers(-99, 99, WIDTH).astype(np.float32)


def summing(role: str, own: dict[str, int], shared: tuple[str, ...] = ()) -> GraphPlan:
    """A graph that adds its tensors to its input."""
    graph = empty_graph(role)
    builder = GraphBuilder(graph)
    total = builder.input("x", F32, [WIDTH])
    planned = {}
    for name in (*own, *shared):
        value = Shared(name, [WIDTH], F32)
        graph.initializers[name] = value
        total = builder.op.Add(total, value)
        tensor = ir.Tensor(values(own[name]), name=name) if name in own else None
        fate = Disposition.COMPUTED if tensor is not None else Disposition.SHARED
        planned[name] = PlannedTensor(name, (WIDTH,), F32, fate, tensor=tensor)
    total.name, total.type, total.shape = "y", ir.TensorType(F32), ir.Shape([WIDTH])
    graph.outputs.append(total)
    section = Decoder(f"{role}.onnx", 1, 1, 1, 1, 1, DecoderInputs("x"), DecoderOutputs("y"))
    return GraphPlan(
        role, section, ir.Model(graph, ir_version=IR_VERSION), TensorPlan(planned, {}, {}), Checkpoint(TINY)
    )


def test_each_graph_shares_what_any_before_it_has(tmp_path: Path) -> None:
    """The third takes one tensor of the first and one of the second, and computes with both."""
    package = Package(
        (
            summing("first", {"a": 1, "b": 2}),
            summing("second", {"c": 3}, ("b",)),
            summing("third", {"d": 4}, ("c", "a")),
            summing("alone", {"a": 5}),
        )
    )
    shares = save_package(package, tmp_path)
    lie = {role: {tensor.name: tensor.data_file for tensor in tensors} for role, tensors in shares.items()}
    first, second = "first.onnx.data", "second.onnx.data"
    assert lie["first"] == {"b": first, "a": first} and lie["second"] == {"b": first, "c": second}
    assert lie["third"] == {"c": second, "a": first} and lie["alone"] == {}
    for role, seeds in {"first": (1, 2), "second": (3, 2), "third": (4, 3, 1), "alone": (5,)}.items():
        session = ort.InferenceSession(tmp_path / f"{role}.onnx", providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"x": values(9)})
        np.testing.assert_array_equal(found, sum((values(seed) for seed in seeds), values(9)))
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.data")}
    assert sum(sizes.values()) < 5 * WIDTH * 4 + 4 * 4096 and package.own_bytes == 5 * WIDTH * 4


def test_bugs_of_a_package() -> None:
    with pytest.raises(RuntimeError, match="second shares b, which no graph before it has"):
        Package((summing("first", {"a": 1}), summing("second", {"c": 3}, ("b",))))
    with pytest.raises(RuntimeError, match="first shares b"):  # what comes later is not there yet
        Package((summing("first", {"a": 1}, ("b",)), summing("second", {"b": 3})))
    with pytest.raises(RuntimeError, match="first, first"):
        Package((summing("first", {"a": 1}), summing("first", {"b": 3})))
    section = Decoder("a.onnx", 1, 1, 1, 1, 1, DecoderInputs("x"), DecoderOutputs("z"))
    with pytest.raises(RuntimeError, match="disagree"):
        replace(summing("first", {"a": 1}), section=section)


def with_two_drafters(folder: Path) -> Plan:
    """A plan with a further entry, made by nothing but appending to the list."""
    asked = {
        kind: BuildOptions(
            output=folder / "o",
            precision="bf16",
            provider="cuda",
            input=TINY,
            drafter_path=drafter(folder / kind, kind),
        )
        for kind in ("dflash2", "dspark")
    }
    build, target = plan(asked["dflash2"], TINY), open_target(Checkpoint(TINY))
    decoder, _ = build.package.graphs
    further = drafter_graph(read(asked["dspark"], target), target, asked["dspark"], build.resolved, decoder)
    assert isinstance(further.section, BlockDrafter)
    config = replace(build.config, model=replace(build.config.model, dspark=further.section))
    return replace(build, package=Package((*build.package.graphs, further)), config=config)


def test_a_further_graph_is_written_recorded_and_compared(tmp_path: Path) -> None:
    build = with_two_drafters(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "again").mkdir()
    files = write(build, tmp_path / "out")
    write(build.hollow(), tmp_path / "again")
    roles = ["decoder", "dflash2", "dspark"]
    assert {"dflash2.onnx", "dspark.onnx", "dspark.onnx.data"} <= set(files)
    model = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]
    shared = [model[role]["shared_initializers"] for role in roles]
    assert shared[0] == shared[1] == shared[2] and len(shared[0]) == 2
    export = open_export(tmp_path / "out")
    assert [graph.role for graph in export.graphs] == roles
    assert not [fault for graph in export.graphs for fault in graph_faults(graph, tmp_path / "again")]
    found = weight_faults(export, build.package, tmp_path / "again")
    assert found.count == sum(len(graph.initializers) for graph in export.graphs) and not found.faults
    with (tmp_path / "out" / "dspark.onnx.data").open("r+b") as file:  # and what is wrong in it is found
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    faults = weight_faults(open_export(tmp_path / "out"), build.package, tmp_path / "again").faults
    assert len(faults) == 1 and faults[0].startswith("dspark.onnx: ")
