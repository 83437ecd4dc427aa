"""A format of weights is one class: nothing else in any graph multiplies by weights, or knows how they are held.

That the source calls these operators in one file alone is tested in test_structure.py.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnxscript import OpBuilder, nn

from builder.family import TargetOptions
from builder.qwen35.config import read_target_config
from builder.qwen35.dense import build_dense
from builder.qwen35.names import EMBEDDING, HEAD, find_names
from builder.qwen35.packed import build_packed
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.reading import read_drafter
from drafters.graph.build import build_drafter
from drafters.graph.graph_io import DrafterOptions
from draftsmith.validation.reference import load_reference
from onnxkit.layers import projection
from onnxkit.layers.graph import BF16, CONTRIB, F32
from onnxkit.layers.precision import Precision
from onnxkit.layers.weight_format import Dense, WeightFormat
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.parameters import Array, Rows, Shared, Source, Transform, Weight
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.save import save
from tests.checkpoints import TINY
from tests.test_dense import LIMIT, largest_error
from tests.test_draft_beyond import CASES, folder_of

DOUBLE, U8 = ir.DataType.DOUBLE, ir.DataType.UINT8
BLOCK = 32
PRODUCTS = {"Gemm", "MatMul", "MatMulNBits"}
LOOKUPS = {"Gather", "GatherBlockQuantized"}
MOVES = {"Split", "Transpose", "Reshape", "Cast", "Slice", "Concat"}  # what they give still is a weight


def quantized(rows: Array) -> list[Array]:
    """Codes of 4 bits, two in a byte, the earlier in the lower half, and the scale of each block of a row."""
    blocks = rows.reshape(len(rows), rows.shape[1] // BLOCK, BLOCK)
    scales = np.maximum(np.abs(blocks).max(-1), np.float32(1e-9)) / 7
    codes = (np.round(blocks / scales[..., None]) + 8).reshape(rows.shape).astype(np.uint8)
    return [(codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.float32), scales.astype(np.float32)]


def as_quantized(weight: torch.Tensor) -> torch.Tensor:
    """The numbers that the codes of a matrix stand for."""
    blocks = weight.reshape(len(weight), -1, BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 7
    return (torch.round(blocks / scales) * scales).reshape(weight.shape)


@dataclass(frozen=True)
class CodedMatrix:
    """A matrix as codes, and a scale for each block of a row."""

    codes: nn.Parameter
    scales: nn.Parameter
    shape: tuple[int, int]

    def parameters(self) -> Sequence[nn.Parameter]:
        return [self.codes, self.scales]

    def product(self, op: OpBuilder, x: ir.Value, bias: ir.Value | None) -> ir.Value:
        inputs = [x, self.codes, self.scales, None, None, bias]
        rows, columns = self.shape
        return op.MatMulNBits(*inputs, N=rows, K=columns, bits=4, block_size=BLOCK, **CONTRIB)

    def rows(self, op: OpBuilder, indices: ir.Value) -> ir.Value:
        codes = op.Reshape(self.codes, [self.shape[0], -1])
        return op.GatherBlockQuantized(codes, indices, self.scales, bits=4, block_size=BLOCK, **CONTRIB)


@dataclass(frozen=True)
class Coded:
    """A format of several initializers, for MatMulNBits: all that it takes is here."""

    dtype: ir.DataType
    stacked: bool = True

    def matrix(self, name: str, shape: tuple[int, int], sources: Sequence[Rows] | None = None) -> CodedMatrix:
        taken = tuple(sources) if sources is not None else (Rows(name, shape[0]),)
        codes, scales = (Source(taken, shape[1:], Transform("4 bits", quantized), output) for output in (0, 1))
        rows, blocks = shape[0], shape[1] // BLOCK
        return CodedMatrix(
            Weight(f"{name}_codes", [rows, blocks, BLOCK // 2], U8, codes),
            Weight(f"{name}_scales", [rows, blocks], self.dtype, scales),
            shape,
        )

    def shared(self, name: str, shape: tuple[int, int]) -> CodedMatrix:
        rows, blocks = shape[0], shape[1] // BLOCK
        codes = Shared(f"{name}_codes", [rows, blocks, BLOCK // 2], U8)
        return CodedMatrix(codes, Shared(f"{name}_scales", [rows, blocks], self.dtype), shape)


# --- every graph there is ---


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> list[DrafterConfig]:
    folder = tmp_path_factory.mktemp("drafters")
    made = [folder_of(folder / str(i), kind, *parts) for i, (kind, parts) in enumerate(CASES.values())]
    return [read_drafter(Checkpoint(each), 4) for each in made]


def graphs(precision: Precision, drafters: Sequence[DrafterConfig]) -> Iterator[ir.Graph]:
    config = read_target_config(Checkpoint(TINY).config)
    for build, tied, pruned in product((build_dense, build_packed), (True, False), (True, False)):
        options = TargetOptions(64, pruned, True, tied, precision, (2, 8), 16, 0)
        yield build(config, options).graph
    for drafter, head in product(drafters, (EMBEDDING, HEAD)):
        yield build_drafter(drafter, DrafterOptions(precision, 64, 16, EMBEDDING, head)).graph


def weight_behind(value: ir.Value | None) -> nn.Parameter | None:
    """The matrix of weights that a value is, or is a part of."""
    if isinstance(value, nn.Parameter):
        return value if value.shape is not None and len(value.shape) > 1 else None
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in MOVES:
        return None
    return next((found for each in node.inputs if (found := weight_behind(each))), None)


def uses(graph: ir.Graph) -> Iterator[tuple[ir.Node, nn.Parameter]]:
    """Nodes that multiply by a matrix of weights, or take rows of one."""
    for node in graph:
        inputs = node.inputs if node.op_type in PRODUCTS else node.inputs[:1] if node.op_type in LOOKUPS else ()
        if weight := next((found for value in inputs if (found := weight_behind(value))), None):
            yield node, weight


def emitter(node: ir.Node) -> str:
    """The class of the module that emitted a node."""
    return str(ast.literal_eval(node.metadata_props["pkg.onnxscript.class_hierarchy"])[-1])


FORMATS: dict[str, WeightFormat] = {
    "of the activations' type": Dense(BF16),
    "of another type": Dense(F32),
    "not stacked": Dense(BF16, stacked=False),
    "codes": Coded(BF16),
    "codes, not stacked": Coded(BF16, stacked=False),
}


@pytest.mark.parametrize("weights", FORMATS.values(), ids=FORMATS)
def test_only_projections_use_weights(weights: WeightFormat, drafters: list[DrafterConfig]) -> None:
    modules = {name for name, each in inspect.getmembers(projection, inspect.isclass) if issubclass(each, nn.Module)}
    seen: set[str] = set()
    for graph in graphs(Precision(BF16, weights), drafters):
        used = list(uses(graph))
        assert used
        seen |= {emitter(node) for node, _ in used}
        assert {(node.name, emitter(node)) for node, _ in used if emitter(node) not in modules} == set()
    assert seen == {"Embedding", "JointLinear", "LMHead", "Linear", "Lookup", "Product"}  # each is tried


def test_a_format_reaches_every_weight(drafters: list[DrafterConfig]) -> None:
    """With codes, nothing of a target is dense, nor what a drafter shares with it; the drafter's body is bf16."""
    for graph in graphs(Precision(BF16, Coded(BF16)), drafters):
        for node, weight in uses(graph):
            coded = str(weight.name).endswith(("_codes", "_scales"))
            assert coded == (graph.name == "target" or isinstance(weight, Shared))
            assert coded == (node.op_type not in ("Gemm", "MatMul", "Gather"))


# --- numbers ---


def saved(folder: Path, precision: Precision) -> ir.Graph:
    """The bundled target, dense, saved; its graph."""
    checkpoint = Checkpoint(TINY)
    config = read_target_config(checkpoint.config)
    names = find_names(checkpoint, config)
    model = build_dense(config, TargetOptions(128, False, False, False, precision))
    save(model, folder / "model.onnx", plan_tensors(model.graph, checkpoint, names, names.left_out))
    return model.graph


@pytest.mark.parametrize("stacked", [True, False])
def test_weights_of_another_type_than_the_activations(tmp_path: Path, stacked: bool) -> None:
    """Weights in float64, activations in float32: each product and each row of a table stands between casts."""
    graph = saved(tmp_path, Precision(F32, Dense(DOUBLE, stacked)))
    assert {weight.dtype for _, weight in uses(graph)} == {DOUBLE}
    assert largest_error(tmp_path, load_reference(TINY)) < LIMIT


@pytest.mark.parametrize("stacked", [True, False])
def test_weights_as_codes(tmp_path: Path, stacked: bool) -> None:
    """A format that is written here alone runs, from stored tensors to logits, against transformers."""
    graph = saved(tmp_path, Precision(F32, Coded(F32, stacked)))
    assert {node.op_type for node, _ in uses(graph)} == {"MatMulNBits", "GatherBlockQuantized"}
    model = load_reference(TINY)
    assert largest_error(tmp_path, model) > 1000 * LIMIT  # 4 bits are few
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data = as_quantized(parameter.data)
    assert largest_error(tmp_path, model) < LIMIT
