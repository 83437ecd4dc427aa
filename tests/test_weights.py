"""onnxkit.weights: streamed bytes against plain NumPy, and a plan that names what does not fit."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnxscript import GraphBuilder, OpBuilder, nn
from safetensors.torch import save_file

import onnxkit.weights.streamed as streamed
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.parameters import AS_IS, NEG_EXP, PLUS_ONE, Rows, Shared, Source, Table, Transform, Weight
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.save import check_graph, save
from onnxkit.weights.tensor_plan import Disposition, PlannedTensor, TensorPlan
from tests.checkpoints import TINY

F32, F16, BF16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
TORCH = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}


class Holder(nn.Module):
    """Parameters in a graph, each read by one node."""

    def __init__(self, *parameters: nn.Parameter) -> None:
        super().__init__("part")
        for number, parameter in enumerate(parameters):
            setattr(self, f"p{number}", parameter)

    def forward(self, op: OpBuilder) -> list[ir.Value]:
        return [op.Identity(parameter) for parameter in self.parameters()]


def built(*parameters: nn.Parameter) -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 22})
    graph.outputs.extend(Holder(*parameters)(GraphBuilder(graph).op))
    return graph


def planned(checkpoint: Checkpoint, graph: ir.Graph, *, left_out: bool = False, allow: bool = False) -> TensorPlan:
    """Plan a graph whose names are the checkpoint's."""
    reasons = dict.fromkeys(checkpoint.tensors, "no use for it") if left_out else {}
    return plan_tensors(graph, checkpoint, lambda name: name, reasons, allow_nonfinite=allow)


def checkpoint_of(folder: Path, **tensors: torch.Tensor) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file({f"part.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return Checkpoint(folder)


def bytes_of(plan: TensorPlan, parameter: nn.Parameter) -> bytes:
    buffer = io.BytesIO()
    tensor: Any = plan.initializers[str(parameter.name)].tensor
    assert tensor is not None
    tensor.tofile(buffer)
    assert buffer.getvalue() == tensor.tobytes()
    assert tensor.nbytes == len(buffer.getvalue())
    return buffer.getvalue()


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("stored", [F32, F16, BF16])
@pytest.mark.parametrize("wanted", [F32, F16, BF16])
@pytest.mark.parametrize("transform", [AS_IS, PLUS_ONE, NEG_EXP])
def test_rows_cast_and_math_in_blocks_of_any_size(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    stored: ir.DataType,
    wanted: ir.DataType,
    transform: Transform,
) -> None:
    """torch's rounding is the reference."""
    monkeypatch.setattr(streamed, "BLOCK_ELEMENTS", block)
    torch.manual_seed(1)
    a, b = torch.randn(6, 5).to(TORCH[stored]), torch.randn(4, 5).to(TORCH[stored])
    weight = Weight("w", [8, 5], wanted, Source((Rows("a", 6, ((4, 6), (0, 2))), Rows("b", 4)), (5,), transform))
    plan = planned(checkpoint_of(tmp_path / "c", a=a, b=b), built(weight))
    rows = torch.cat([a[4:6], a[0:2], b]).float()
    expected = {AS_IS: rows, PLUS_ONE: rows + 1, NEG_EXP: -rows.exp()}[transform].to(TORCH[wanted])
    got = torch.frombuffer(bytearray(bytes_of(plan, weight)), dtype=TORCH[wanted]).reshape(8, 5)
    if transform is NEG_EXP:  # two libraries' exponentials may differ in the last place
        torch.testing.assert_close(got, expected)
    else:
        assert torch.equal(got, expected)


def test_an_unchanged_tensor_that_is_not_looked_at_is_a_range_of_its_file(tmp_path: Path) -> None:
    weight = Weight("a", [6, 5], BF16)
    checkpoint = checkpoint_of(tmp_path / "c", a=torch.randn(6, 5).to(torch.bfloat16))
    tensor = planned(checkpoint, built(weight), allow=True).initializers["part.a"].tensor
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.path == str(tmp_path / "c" / "model.safetensors")


# --- numbers ---

F64 = torch.float64


def written(
    folder: Path, tensor: torch.Tensor, dtype: ir.DataType, transform: Transform = AS_IS, *, allow: bool = False
) -> bytes:
    weight = Weight("a", list(tensor.shape), dtype, transform=transform)
    return bytes_of(planned(checkpoint_of(folder, a=tensor), built(weight), allow=allow), weight)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("stored", [F64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [F32, F16, BF16])
def test_what_is_not_finite_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    value: float,
    stored: torch.dtype,
    wanted: ir.DataType,
) -> None:
    """Copied or converted, in any type; allowed, it goes through as it is."""
    monkeypatch.setattr(streamed, "BLOCK_ELEMENTS", block)
    tensor = torch.ones(4, 5).to(stored)
    tensor[2, 3] = value
    with pytest.raises(ExportError, match="not finite") as caught:
        written(tmp_path, tensor, wanted)
    assert "part.a[2, 3]" in str(caught.value) and "allow_nonfinite=true" in str(caught.value)
    got = torch.frombuffer(bytearray(written(tmp_path, tensor, wanted, allow=True)), dtype=TORCH[wanted])
    torch.testing.assert_close(got, tensor.to(TORCH[wanted]).flatten(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("beside", [1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("stored", "wanted", "value"),
    [(torch.float32, F16, 7e4), (torch.bfloat16, F16, 1e5), (F64, F16, 1e300), (F64, BF16, 1e39), (F64, F32, -1e39)],
)
def test_what_a_type_cannot_hold_is_named(
    tmp_path: Path, beside: float, stored: torch.dtype, wanted: ir.DataType, value: float
) -> None:
    """Whatever stands beside it in the block."""
    tensor = torch.tensor([beside, value, 2.0], dtype=F64).to(stored)
    with pytest.raises(ExportError, match="too large"):
        written(tmp_path, tensor, wanted, allow=True)


def test_math_that_leaves_the_numbers_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="too large"):
        written(tmp_path, torch.tensor([1.0, 200.0]), F32, NEG_EXP)


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize(("stored", "wanted", "value"), [(torch.float32, F16, 1e-9), (F64, F32, 1e-60)])
def test_a_tensor_that_would_vanish_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, stored: torch.dtype, wanted: ir.DataType, value: float
) -> None:
    """As a whole: single values may, and zeros are zeros."""
    monkeypatch.setattr(streamed, "BLOCK_ELEMENTS", block)
    with pytest.raises(ExportError, match="too small"):
        written(tmp_path, torch.full((3, 2), value, dtype=stored), wanted)
    assert any(written(tmp_path, torch.tensor([value, 1.0], dtype=stored), wanted))
    assert not any(written(tmp_path, torch.zeros(6, dtype=stored), wanted))


def test_a_small_tensor_says_so_as_a_large_one_does(tmp_path: Path) -> None:
    """It goes into the model file itself, where onnx_ir would wrap the error in one of its own."""
    graph = built(Weight("a", [3], F16))
    plan = planned(checkpoint_of(tmp_path, a=torch.tensor([1.0, 1e6, 2.0])), graph)
    with pytest.raises(ExportError, match="too large"):
        save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", plan)


@pytest.mark.parametrize("shape", [[9, 4], [4]])
def test_tables_are_computed_row_by_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shape: list[int]) -> None:
    monkeypatch.setattr(streamed, "BLOCK_ELEMENTS", 10)
    whole = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    table = Table("t", shape, BF16, lambda start, stop: whole[start:stop])
    plan = planned(checkpoint_of(tmp_path / "c", a=torch.zeros(1)), built(table), left_out=True)
    rows = whole if len(shape) == 2 else whole[0]
    assert bytes_of(plan, table) == rows.astype(ml_dtypes.bfloat16).tobytes()


def test_links_are_followed(tmp_path: Path) -> None:
    """The Hub's cache holds links to blobs elsewhere."""
    blobs, folder = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0123"
    for made in (blobs, folder):
        made.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (blobs / name).write_bytes((TINY / name).read_bytes())
        (folder / name).symlink_to(f"../../blobs/{name}")
    from tests.runtime import export

    assert (export(folder, tmp_path / "out") / "model.onnx.data").exists()


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, dtype: ir.DataType) -> None:
    """Copied as it is or cast."""
    graph = built(Weight("a", [600, 5], dtype))
    plan = planned(checkpoint_of(tmp_path / "c", a=torch.randn(600, 5).to(torch.bfloat16)), graph)
    path = tmp_path / "c" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ExportError, match="changed while it was being read"):
        save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx", plan)


def test_two_takers_of_one_tensor_are_a_bug(tmp_path: Path) -> None:
    graph = built(Weight("a", [2], F32), Weight("b", [2], F32, Source((Rows("a", 2),))))
    with pytest.raises(RuntimeError, match=r"part\.a is taken by part\.a and by part\.b"):
        planned(checkpoint_of(tmp_path / "c", a=torch.zeros(2)), graph)


def test_sources_that_do_not_make_up_the_shape_are_a_bug() -> None:
    with pytest.raises(ValueError, match=r"does not make up \[5\]"):
        Weight("w", [5], F32, Source((Rows("a", 2), Rows("b", 4, ((0, 2),)))))


def test_small_tensors_go_into_the_model_file(tmp_path: Path) -> None:
    graph = built(Weight("a", [64], F32), Weight("b", [65], F32))
    plan = planned(checkpoint_of(tmp_path / "c", a=torch.randn(64), b=torch.randn(65)), graph)
    counts: list[int] = []
    save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", plan, counts.append)
    assert (tmp_path / "m.onnx.data").stat().st_size == 65 * 4 == sum(counts)


# --- the graph's last check ---


def a_graph() -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 22})
    builder = GraphBuilder(graph)
    x = builder.input("x", F32, [2])
    y = builder.op.Add(x, builder.op.Mul(x, 2.0))
    y.name = "y"
    graph.outputs.append(y)
    return graph


def rename(graph: ir.Graph, new: str) -> None:
    graph.node(0).outputs[0].name = new


def unmake(graph: ir.Graph) -> None:
    graph.remove(graph.node(0))


def add_unplanned(graph: ir.Graph) -> None:
    value = ir.Value(name="w", const_value=ir.tensor([1.0], name="w"))
    graph.initializers["w"] = value
    graph.node(0).replace_input_with(1, value)


def same_node_name(graph: ir.Graph) -> None:
    graph.node(1).name = graph.node(0).name


def output_twice(graph: ir.Graph) -> None:
    graph.outputs.append(graph.outputs[0])


def output_is_input(graph: ir.Graph) -> None:
    graph.outputs.append(graph.inputs[0])


def swapped(graph: ir.Graph) -> None:
    first = graph.node(0)
    graph.remove(first)
    graph.append(first)


def test_a_whole_graph_passes() -> None:
    graph = a_graph()
    check_graph(graph, constants(graph))


def constants(graph: ir.Graph) -> TensorPlan:
    """The plan of a graph that reads no checkpoint."""
    found = {name: value.const_value for name, value in graph.initializers.items()}
    return TensorPlan({n: PlannedTensor(n, (), F32, Disposition.COMPUTED, tensor=t) for n, t in found.items()}, {}, {})


def test_a_constant_without_a_value_is_a_bug(tmp_path: Path) -> None:
    graph = a_graph()
    next(iter(graph.initializers.values())).const_value = None
    with pytest.raises(RuntimeError, match="nothing says where"):
        planned(checkpoint_of(tmp_path, a=torch.zeros(1)), graph, left_out=True)


def test_an_initializer_that_nothing_reads_is_not_saved(tmp_path: Path) -> None:
    graph = a_graph()
    graph.initializers["w"] = ir.Value(name="w", const_value=ir.tensor([1.0], name="w"))
    with pytest.raises(RuntimeError, match="read by nothing"):
        save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx", constants(graph))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda graph: rename(graph, "x"), "not the only one"),
        (lambda graph: rename(graph, ""), "empty"),
        (unmake, "nothing before it makes"),
        (swapped, "nothing before it makes"),
        (add_unplanned, "not both in the graph and in its plan"),
        (same_node_name, "two nodes"),
        (output_twice, "distinct"),
        (output_is_input, "distinct"),
    ],
)
def test_a_damaged_graph_is_not_saved(damage: Any, message: str, tmp_path: Path) -> None:
    graph = a_graph()
    plan = constants(graph)
    damage(graph)
    with pytest.raises(RuntimeError, match=message):
        save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx", plan)
    assert not list(tmp_path.iterdir())


# --- the plan ---


def test_a_plan_says_what_becomes_of_every_tensor(tmp_path: Path) -> None:
    """By hand: two tensors stacked and copied, one converted, a table computed, one shared, two left out."""
    stacked = Weight("ab", [5, 3], BF16, Source((Rows("a", 2), Rows("b", 3)), (3,)))
    converted = Weight("c", [4], F32, transform=PLUS_ONE)
    table = Table("t", [9, 4], F32, lambda start, stop: np.zeros((stop - start, 4), np.float32))
    graph = built(stacked, converted, table, Shared("s", [100, 4], F16))
    bf16 = {name: torch.randn(size, 3).to(torch.bfloat16) for name, size in (("a", 2), ("b", 3), ("x", 1), ("y", 1))}
    checkpoint = checkpoint_of(tmp_path, **bf16, c=torch.randn(4))
    reasons = {"part.x": "a vision encoder", "part.y": "a vision encoder"}
    plan = plan_tensors(graph, checkpoint, lambda name: name, reasons)
    assert {name: tensor.disposition.name for name, tensor in plan.initializers.items()} == {
        "part.ab": "COPIED",
        "part.c": "CONVERTED",
        "part.t": "COMPUTED",
        "part.s": "SHARED",
    }
    assert [stored.name for stored in plan.initializers["part.ab"].sources] == ["part.a", "part.b"]
    assert plan.takers == {"part.a": "part.ab", "part.b": "part.ab", "part.c": "part.c"}
    assert plan.left_out == reasons and plan.shared == ["part.s"]
    assert plan.byte_count(Disposition.COPIED) == 30 and plan.byte_count(Disposition.SHARED) == 800
    assert plan.external_bytes == 0  # all are small enough for the model file
    assert all(value.const_value is None for value in graph.initializers.values())  # planning changes nothing


def test_a_transform_may_see_whole_rows_and_give_several_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a weight format has codes and scales: here each row over its largest value, of three experts' tensors."""
    monkeypatch.setattr(streamed, "BLOCK_ELEMENTS", 7)  # less than two rows

    def scaled(rows: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        scales = np.abs(rows).max(axis=1, keepdims=True, initial=0)
        return [np.rint(127 * rows / scales), scales]

    transform = Transform("codes and scales", scaled)
    rows, inner = tuple(Rows(f"e{number}", 4) for number in range(3)), (6,)
    codes = Weight("codes", [3, 4, 6], ir.DataType.INT8, Source(rows, inner, transform))
    scales = Weight("scales", [3, 4], F32, Source(rows, inner, transform, output=1))
    experts = torch.randn(3, 4, 6)
    plan = planned(checkpoint_of(tmp_path, **{f"e{n}": e for n, e in enumerate(experts)}), built(codes, scales))
    most = experts.abs().amax(-1)
    assert bytes_of(plan, codes) == (127 * experts / most[..., None]).round().to(torch.int8).numpy().tobytes()
    assert bytes_of(plan, scales) == most.numpy().tobytes()
    assert {tensor.disposition for tensor in plan.initializers.values()} == {Disposition.CONVERTED}


def test_a_fused_tensor_of_experts_is_read_by_its_first_dimension(tmp_path: Path) -> None:
    """Some experts of a stored three-dimensional tensor, in another order."""
    weight = Weight("w", [2, 4, 6], F32, Source((Rows("experts", 3, ((2, 3), (0, 1))),), (4, 6)))
    experts = torch.randn(3, 4, 6)
    plan = planned(checkpoint_of(tmp_path, experts=experts), built(weight))
    assert bytes_of(plan, weight) == experts[[2, 0]].numpy().tobytes()
