"""Faults in the graphs: each is one that an exporter could make, and most leave the text as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

Edit = Callable[[ir.Graph], object]
Change = Callable[["np.ndarray[Any, Any]"], "np.ndarray[Any, Any]"]


def edited(name: str, edit: Edit) -> Callable[[Path], None]:
    """A fault's function: load a graph, change it, save it. ``drafter`` stands for whichever there is."""

    def apply(folder: Path) -> None:
        file = next(p for p in folder.glob("d*.onnx")) if name == "drafter" else folder / f"{name}.onnx"
        model = ir.load(file)
        edit(model.graph)
        ir.save(model, file)

    return apply


def nodes(graph: ir.Graph, kind: str, part: str = "") -> list[ir.Node]:
    """The nodes of an operator, in a part of the graph, in order."""
    found = [node for node in graph if node.op_type == kind and part in str(node.name)]
    assert found, (kind, part)
    return found


def swap_inputs(node: ir.Node, first: int, second: int) -> None:
    """Exchange two inputs of a node."""
    a, b = node.inputs[first], node.inputs[second]
    node.replace_input_with(first, b)
    node.replace_input_with(second, a)


def swap_outputs(node: ir.Node, first: int, second: int) -> None:
    """Exchange two outputs of a node, where they are read."""
    a, b = node.outputs[first], node.outputs[second]
    of_a, of_b = list(a.uses()), list(b.uses())
    for use in of_a:
        use.node.replace_input_with(use.idx, b)
    for use in of_b:
        use.node.replace_input_with(use.idx, a)


def change_table(graph: ir.Graph, part: str, change: Change) -> None:
    """Change a constant or weight, whose name holds ``part``; it then stands in the model file."""
    found = [value for name, value in graph.initializers.items() if part in name]
    assert found, part
    for value in found:
        tensor = value.const_value
        assert tensor is not None
        array = tensor.numpy()
        changed = change(array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array).astype(array.dtype)
        value.const_value = ir.Tensor(np.ascontiguousarray(changed), dtype=tensor.dtype, name=value.name)


def swap_weights(graph: ir.Graph, first: str, second: str) -> None:
    """Exchange what is read as two weights."""
    values = graph.initializers
    a, b = (values.get(part) or next(v for n, v in values.items() if part in n) for part in (first, second))
    assert a is not b
    a.const_value, b.const_value = b.const_value, a.const_value
    for value in (a, b):
        assert value.const_value is not None
        value.const_value.name = value.name


# --- edits that are made of these ---


def attribute(kind: str, name: str, value: int | float, which: int | None = None) -> Edit:
    """Set an attribute of all nodes of an operator, or of one."""

    def edit(graph: ir.Graph) -> None:
        for node in nodes(graph, kind) if which is None else [nodes(graph, kind)[which]]:
            made = ir.AttrFloat32(name, value) if isinstance(value, float) else ir.AttrInt64(name, value)
            node.attributes[name] = made

    return edit


def inputs(kind: str, first: int, second: int, which: int = 0) -> Edit:
    """Exchange two inputs of one node of an operator."""
    return lambda graph: swap_inputs(nodes(graph, kind)[which], first, second)


def outputs(kind: str, part: str) -> Edit:
    """Exchange the two outputs of the first node of an operator in a part of the graph."""
    return lambda graph: swap_outputs(nodes(graph, kind, part)[0], 0, 1)


def weights(first: str, second: str) -> Edit:
    """Exchange two weights."""
    return lambda graph: swap_weights(graph, first, second)


def table(part: str, change: Change) -> Edit:
    """Change a constant or a weight."""
    return lambda graph: change_table(graph, part, change)


# --- taps ---


def streams(graph: ir.Graph) -> list[ir.Value]:
    """The stream entering each layer, from layer 1 on, and the final norm."""
    norms = nodes(graph, "SkipSimplifiedLayerNormalization")
    return [node.outputs[3] for node in norms if "post_attention" not in str(node.name)]


def move_tap(place: int, by: int) -> Edit:
    """Read a neighbouring layer's stream as one tap."""

    def edit(graph: ir.Graph) -> None:
        concat, all_streams = nodes(graph, "Concat")[-1], streams(graph)
        at = next(i for i, stream in enumerate(all_streams) if stream is concat.inputs[place])
        concat.replace_input_with(place, all_streams[at + by])

    return edit


def move_all_taps(by: int) -> Edit:
    """Read every tap one layer away: the off-by-one."""

    def edit(graph: ir.Graph) -> None:
        for place in range(len(nodes(graph, "Concat")[-1].inputs)):
            move_tap(place, by)(graph)

    return edit


def normed_tap(graph: ir.Graph) -> None:
    """Read the norm's output in the stream's place."""
    concat = nodes(graph, "Concat")[-1]
    stream = concat.inputs[1]
    assert stream is not None
    norm = stream.producer()
    assert norm is not None
    concat.replace_input_with(1, norm.outputs[0])


# --- rotary embedding ---


def rotated(theta_times: float = 1.0, position_times: float = 1.0, factor: float = 1.0) -> Edit:
    """Rotary tables of another base, scale or attention factor, from the angles that the tables themselves tell."""

    def edit(graph: ir.Graph) -> None:
        sizes = next(v.const_value for n, v in graph.initializers.items() if n.endswith("emb.cos"))
        assert sizes is not None
        count, half = sizes.shape.numpy()
        first = np.asarray(sizes.numpy()[1], np.float32)  # cosines of the frequencies
        frequencies = np.arccos(np.clip(first, -1, 1))
        exponents = np.arange(half) / half
        angles = np.arange(count)[:, None] * frequencies * position_times / theta_times**exponents
        change_table(graph, "emb.cos", lambda _: np.cos(angles) * factor)
        change_table(graph, "emb.sin", lambda _: np.sin(angles) * factor)

    return edit


# --- the drafter ---


def concat_order(graph: ir.Graph) -> None:
    """Put the context before the block, against what the row map says."""
    for node in nodes(graph, "Concat", "self_attn"):
        swap_inputs(node, 0, 1)


def transpose_pairs(graph: ir.Graph) -> None:
    """Score ``[current, previous]``."""
    matmul = nodes(graph, "MatMul")[-1]
    transpose = ir.node("Transpose", [matmul.outputs[0]], attributes={"perm": [0, 1, 3, 2]}, name="faulty")
    uses = list(matmul.outputs[0].uses())
    graph.insert_after(matmul, transpose)
    transpose.outputs[0].name = "faulty"
    for use in uses:
        use.node.replace_input_with(use.idx, transpose.outputs[0])


def other_rows(start: int, stop: int) -> Edit:
    """Let other rows of a block predict."""

    def edit(graph: ir.Graph) -> None:
        node = next(n for n in nodes(graph, "Slice") if n.inputs[1] is not None and "const" in str(n.inputs[1].name))
        for place, value in ((1, start), (2, stop)):
            constant = ir.Value(name=f"faulty{place}", const_value=ir.tensor([value], name=f"faulty{place}"))
            graph.initializers[f"faulty{place}"] = constant
            node.replace_input_with(place, constant)

    return edit


def rolled_unary(graph: ir.Graph) -> None:
    """Add each row's own scores to the row after it."""
    add = graph.outputs[1].producer()
    assert add is not None
    unary = add.inputs[1]
    assert unary is not None
    split = ir.node("Split", [unary], attributes={"axis": 1, "num_outputs": 2}, num_outputs=2, name="faulty_split")
    concat = ir.node("Concat", [split.outputs[1], split.outputs[0]], attributes={"axis": 1}, name="faulty_concat")
    for i, value in enumerate((*split.outputs, *concat.outputs)):
        value.name = f"faulty_{i}"
    graph.insert_before(add, [split, concat])
    add.replace_input_with(1, concat.outputs[0])


def shared_table(folder: Path) -> None:
    """Let the drafter's head refer to the embedding's bytes."""
    file = next(folder.glob("d*.onnx"))
    model = ir.load(file)
    head, table = (model.graph.initializers[n] for n in ("lm_head.weight", "model.embed_tokens.weight"))
    assert isinstance(table.const_value, ir.ExternalTensor)
    where = table.const_value
    head.const_value = ir.ExternalTensor(
        where.location, where.offset, where.length, where.dtype, shape=where.shape, name=str(head.name), base_dir=folder
    )
    ir.save(model, file)
