"""Checks of the files: every reference inside, every graph loadable, configuration and graphs agreed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
import onnxruntime_genai as og

from draftsmith.verify.checks import Results
from draftsmith.verify.folder import ExportFolder, Graph

LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def check_files(export: ExportFolder, results: Results) -> bool:
    """Check references, sessions, names and the parser; gives whether every tensor can be read."""
    faults = [fault for graph in export.graphs for fault in _reference_faults(export.path, graph)]
    count = sum(isinstance(t, ir.ExternalTensor) for graph in export.graphs for t in graph.initializers.values())
    results.stated("files", f"{count} tensors lie inside the folder and inside their files", faults)
    readable = not faults
    for graph in export.graphs:
        _check_session(graph, results)
    faults = [fault for graph in export.graphs for fault in _name_faults(graph)]
    results.stated("names", "configuration and graphs name the same inputs and outputs", faults)
    with results.guarded("parser"):
        og.Config(str(export.path))
        results.stated("parser", f"onnxruntime-genai {og.__version__} accepts genai_config.json", [])
    return readable


def _reference_faults(folder: Path, graph: Graph) -> Iterator[str]:
    for name, tensor in graph.initializers.items():
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location, length = str(tensor.location), tensor.length if tensor.length is not None else tensor.nbytes
        if Path(location).is_absolute() or ".." in Path(location).parts or not location:
            yield f"{graph.path.name}: {name} refers outside the folder: {location!r}"
        elif not (folder / location).is_file():
            yield f"{graph.path.name}: {name} refers to {location}, which is not there"
        elif length != tensor.nbytes:
            yield f"{graph.path.name}: {name} has {length} bytes, its type and shape call for {tensor.nbytes}"
        elif (tensor.offset or 0) < 0 or (tensor.offset or 0) + length > (folder / location).stat().st_size:
            yield f"{graph.path.name}: {name} reaches beyond the end of {location}"


def _check_session(graph: Graph, results: Results) -> None:
    """A 16-bit graph must fail on the CPU for want of a kernel, and for nothing else: all else is a broken export."""
    low = any(value.dtype in LOW for value in (*graph.model.graph.inputs, *graph.model.graph.outputs))
    name = f"session {graph.path.name}"
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        ort.InferenceSession(graph.path, options, providers=["CPUExecutionProvider"])
        results.stated(name, "onnxruntime loads it", [])
    except Exception as error:  # of many classes
        text = str(error).splitlines()[0][:300]
        expected = low and "NOT_IMPLEMENTED" in text
        what = "onnxruntime refuses it on the CPU for want of a 16-bit kernel, and for nothing else"
        results.stated(name, what if expected else "onnxruntime loads it", [] if expected else [text])


def _name_faults(graph: Graph) -> Iterator[str]:
    for part, values in (("inputs", graph.model.graph.inputs), ("outputs", graph.model.graph.outputs)):
        declared = [str(name) for name in graph.section.get(part, {}).values()]
        names = {str(value.name) for value in values}
        patterns = [re.compile(re.escape(name).replace("%d", r"\d+")) for name in declared]
        for name, pattern in zip(declared, patterns, strict=True):
            if not any(pattern.fullmatch(n) for n in names):
                yield f"{graph.role}.{part}: {name} is not in {graph.path.name}"
        for name in sorted(names):
            if not any(pattern.fullmatch(name) for pattern in patterns):
                yield f"{graph.path.name}: {part[:-1]} {name} is not in the configuration"
