"""Loads the graphs of an export with the installed onnxruntime, or runs a kernel, in a separate process.

A runtime that does not fit the machine may crash, and prints its reasons instead of raising them; neither must reach
the calling process. ``python -m draftsmith.doctor.probe TASK`` reads a task in JSON and prints the findings in JSON.

Graphs are loaded without their weights: each tensor of the data file becomes an input of its type and shape, so that
nothing is read or sent to the GPU, whatever the model's size.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


def main() -> None:
    """Carry out the task of the command line: ``{}``, or ``{"cuda": bool, "folder": str, "graphs": [name]}``."""
    task = json.loads(sys.argv[1])
    import onnxruntime as ort

    if hasattr(ort, "preload_dlls"):  # not in versions that are far too old
        ort.preload_dlls()
    result: dict[str, Any] = {}
    if not task:
        result["kernel"] = _guarded(_run_kernel)
    else:
        folder = Path(task["folder"])
        result["config"] = _guarded(_read_config, folder)
        result["graphs"] = {name: _load(folder / name, task["cuda"]) for name in task["graphs"]}
    print("\n" + json.dumps(result))


def _guarded(function: Any, *arguments: Any) -> str | None:
    """The error that a function raises, as text; None if it raises none."""
    try:
        function(*arguments)
    except Exception as error:  # the runtimes raise types of their own
        return str(error)
    return None


def _session(model: bytes, cuda: bool, **settings: str) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors
    for key, value in settings.items():
        options.add_session_config_entry(f"session.{key}", value)
    return ort.InferenceSession(model, options, providers=[CUDA] if cuda else [CPU])


def _run_kernel() -> None:
    """Run one small kernel on the GPU. A GPU for which there is no machine code fails here, and not before."""
    import numpy as np
    import onnx_ir as ir

    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    node = ir.node("Sigmoid", [value])
    node.outputs[0].name = "y"
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 21}, name="kernel")
    model = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    session = _session(model, cuda=True, disable_cpu_ep_fallback="1")
    session.run(None, {"x": np.zeros(4, np.float32)})


def _read_config(folder: Path) -> None:
    import onnxruntime_genai as og

    og.Config(str(folder))


def _load(path: Path, cuda: bool) -> dict[str, Any]:
    """Load one graph; returns the error, or how many nodes of each kind every provider has taken."""
    placed: dict[str, Counter[str]] = defaultdict(Counter)
    try:
        session = _session(without_weights(path), cuda, record_ep_graph_assignment_info="1")
        for part in session.get_provider_graph_assignment_info() if cuda else ():
            placed[part.ep_name].update(f"{node.domain}::{node.op_type}".lstrip(":") for node in part.get_nodes())
    except Exception as error:  # the same
        return {"error": str(error), "not_implemented": type(error).__name__ == "NotImplemented", "placed": {}}
    return {"error": None, "not_implemented": False, "placed": placed}


def without_weights(path: Path) -> bytes:
    """A graph in which each tensor of a data file is an input instead."""
    import onnx_ir as ir

    model = ir.load(path)
    initializers = model.graph.initializers
    for name, value in list(initializers.items()):
        if isinstance(value.const_value, ir.ExternalTensor):
            del initializers[name]
            value.const_value = None
            model.graph.inputs.append(value)
    serialized: bytes = ir.to_proto(model).SerializeToString()
    return serialized


if __name__ == "__main__":
    main()
