"""Whether the runtime accepts an export: its operators, types, attributes and their values, and its size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from draftsmith.cuda_driver import Gpu
from draftsmith.cuda_runtime import dotted, numbers
from draftsmith.doctor.findings import Findings
from draftsmith.doctor.probe import CPU, CUDA
from draftsmith.doctor.versions import NEWER, newer_parts
from draftsmith.verify.folder import ExportFolder, Graph
from onnxkit.sizes import readable

# Arithmetic on shapes, which a dense graph leaves to the CPU: a few integers per token.
_SHAPES = {"Shape", "Gather", "Concat", "Slice", "Squeeze", "Unsqueeze", "Cast", "Sub", "Add", "Mul", "Div", "Range"}


def provider(export: ExportFolder) -> str:
    """Where the export is to run: ``cpu`` or ``cuda``."""
    options = export.decoder.section.get("session_options", {}).get("provider_options")
    return next((name for option in options for name in option), "cpu")


def check_versions(export: ExportFolder, version: str, findings: Findings) -> None:
    """Look for what a version of onnxruntime does not know.

    Args:
        export: The export.
        version: The version of onnxruntime that is to run it.
        findings: Where what was found goes.
    """
    faults = []
    for graph in export.graphs:
        parts = newer_parts(graph.model.graph)
        if parts and numbers(version) < NEWER:
            faults += [f"{graph.path.name}: {part}" for part in parts]
    if faults:
        faults.append(
            f"to do: export again with this version of Draftsmith, or use onnxruntime {dotted(NEWER)} or newer."
        )
    known = "not all known" if faults else "all known"
    findings.note("operators", f"attributes, values and types {known} to onnxruntime {version}", faults)


def check_graph(export: ExportFolder, graph: Graph, found: Mapping[str, Any], cuda: bool, findings: Findings) -> None:
    """Judge the result of loading a graph.

    Args:
        export: The export.
        graph: One of its graphs.
        found: What the probe reported about it.
        cuda: Whether it was loaded for the GPU.
        findings: Where what was found goes.
    """
    name, error = graph.path.name, found["error"]
    loaded_for = "cuda" if cuda and provider(export) == "cuda" else "cpu"
    # The CPU lacks kernels for 16 bits, which it reports only after accepting every operator, type and attribute.
    lacks_kernels = found["not_implemented"] and provider(export) == "cuda" and loaded_for == "cpu"
    if error and not lacks_kernels:
        findings.note(name, "not taken by the installed onnxruntime", [shortened(error)])
    elif loaded_for == "cuda":
        left = dict(found["placed"].get(CPU, {}))
        wrong = left if export.packed else {kind: count for kind, count in left.items() if kind not in _SHAPES}
        what = f"{sum(found['placed'].get(CUDA, {}).values())} nodes on the GPU, {sum(left.values())} on the CPU"
        findings.note(name, what, [f"should be on the GPU: {count} {kind}" for kind, count in wrong.items()])
    elif provider(export) == "cuda":
        findings.note(name, "operators, types and attributes are taken; which run on the GPU, only a GPU can tell")
    else:
        findings.note(name, "loaded for the CPU")


def check_memory(export: ExportFolder, gpu: Gpu, findings: Findings) -> None:
    """Compare the weights with the memory of the GPU that is to hold them."""
    sizes = {file: file.stat().st_size for file in export.path.glob("*.onnx*") if file.is_file()}
    total = sum(sizes.values())
    what = f"weights {readable(total)} of the GPU's {readable(gpu.memory)}; the rest is for caches"
    faults = [] if total < gpu.memory else ["to do: run it on a larger GPU, or export a smaller model."]
    findings.note("memory", what, faults)


def shortened(error: str) -> str:
    """An error of onnxruntime without the names and types of all inputs and outputs of the node."""
    error = re.sub(r"\s*:\s*\(.*\) -> \(.*\) , ", ": ", error.strip())
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", error)
