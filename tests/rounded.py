"""An export in its own 16 bits on the CPU: a lowered copy in which every result is rounded as a GPU would round it.

For most operators there is no kernel of 16 bits on the CPU. A GPU's kernels compute in float32 inside and round what
they put out, which two casts behind each operator do as well. How a real kernel adds up, and what it rounds inside,
this cannot show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from draftsmith.validation.ranges import value_types
from draftsmith.validation.widen import LOW, widen
from draftsmith.verify.copies import LOWERED, MULTIPLE, Copy
from draftsmith.verify.folder import ExportFolder
from draftsmith.verify.running import Running
from draftsmith.verify.sources import TORCH
from draftsmith.verify.target import activation_type


def rounded(export: ExportFolder, work: Path) -> Running:
    """Make the copy. Its inputs and outputs have the export's types, so that the Engine's caches have them, too."""
    folder = work / "rounded"
    widen(export.path, folder)
    for graph in export.graphs:
        path = folder / graph.path.name
        model = ir.load(path)
        round_graph(model.graph, value_types(graph.model.graph))
        ir.save(model, path)
    dtype = TORCH[activation_type(export.decoder)]
    return Running(folder, work, limit=torch.finfo(dtype).eps, multiple=MULTIPLE)


def round_graph(graph: ir.Graph, types: Mapping[str, ir.DataType]) -> None:
    """Round every value that the stored graph has in 16 bits."""
    nodes = list(graph)
    for value in graph.inputs:
        if (dtype := types.get(str(value.name))) in LOW:
            readers = list(value.uses())
            wide = _cast(value, ir.DataType.FLOAT)
            _redirect(readers, wide)
            graph.insert_before(nodes[0], _producer(wide))
            value.type = ir.TensorType(dtype)
    for node in nodes:
        for value in node.outputs:
            if (dtype := types.get(str(value.name))) in LOW:
                readers = list(value.uses())
                low = _cast(value, dtype)
                wide = _cast(low, ir.DataType.FLOAT)
                _redirect(readers, wide)
                graph.insert_after(node, [_producer(low), _producer(wide)])
                name, value.name = value.name, f"{value.name}.exact"
                _give_out(graph, value, low, wide, str(name))


def _redirect(readers: Iterable[Any], source: ir.Value) -> None:
    for reader in readers:
        reader.node.replace_input_with(reader.idx, source)


def _give_out(graph: ir.Graph, value: ir.Value, low: ir.Value, wide: ir.Value, name: str) -> None:
    """The rounded value has the name; where it was put out, in its 16 bits."""
    if not any(output is value for output in graph.outputs):
        wide.name = name
    for place, output in enumerate(graph.outputs):
        if output is value:
            low.name, low.shape = name, value.shape
            graph.outputs[place] = low


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Value:
    node = ir.node("Cast", [value], {"to": dtype})
    node.outputs[0].name = f"{value.name}.{dtype.name}"
    node.outputs[0].type = ir.TensorType(dtype)
    node.name = f"cast.{node.outputs[0].name}"
    return node.outputs[0]


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


ROUNDED = Copy("rounding", LOWERED.check, rounded)
