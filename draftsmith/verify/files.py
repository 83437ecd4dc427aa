"""Checks of the files: every reference inside, every graph loadable, configuration and graphs in agreement."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime_genai as og

from builder.output import MANIFEST
from builder.tokenizer import FILES, GENERATION_CONFIG, TOKENIZER_CONFIG
from draftsmith.validation.widen import by_real_path, is_plain
from draftsmith.verify.checks import Results
from draftsmith.verify.folder import CONFIG, ExportFolder, Graph
from draftsmith.verify.machine import machine_trouble
from onnxkit.weights.save import PRODUCER
from onnxkit.weights.streamed import BLOCK_ELEMENTS

LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
FLOATS = (*LOW, ir.DataType.FLOAT, ir.DataType.DOUBLE)


LISTING = "list of files"

# Settings of a session that load code or write files.
_LOADS_OR_WRITES = re.compile(r"custom_ops|library|profil|file_?path|file_?folder|dump", re.IGNORECASE)

# What the runtime may read from a folder besides what the configuration names, and what could be loaded or run.
_READ = {*FILES, TOKENIZER_CONFIG, GENERATION_CONFIG, "tokenizer.model", "adapter_config.json"}
_RUN = (".onnx", ".data", ".so", ".dll", ".dylib", ".py", ".pyd", ".onnx_adapter", ".bin", ".ort")


def check_files(export: ExportFolder, results: Results) -> bool:
    """Check references, values, sessions, names and the parser; returns whether every tensor can be read."""
    _check_listing(export, results)
    faults = [fault for graph in export.graphs for fault in _reference_faults(export.path, graph)]
    count = sum(len(graph.initializers) for graph in export.graphs)
    results.stated("files", f"{count} tensors lie inside the folder and inside their files", faults, count)
    readable = not faults
    if readable:
        with results.guarded("values"):
            _check_values(export, results)
        for graph in export.graphs:
            _check_session(graph, results)
    faults = [fault for graph in export.graphs for fault in _name_faults(graph)]
    results.stated("names", "configuration and graphs name the same inputs and outputs", faults)
    with results.guarded("parser"):
        og.Config(str(export.path))
        results.stated("parser", f"onnxruntime-genai {og.__version__} accepts genai_config.json", [])
    foreign = [fault for graph in export.graphs for fault in _foreign(graph)]
    results.stated("foreign code", "the configuration loads no library and writes no file", foreign)
    return readable


def _check_listing(export: ExportFolder, results: Results) -> None:
    """The files of the folder against the export's own list of them."""
    if export.manifest is None:
        ours = [graph.path.name for graph in export.graphs if graph.model.producer_name == PRODUCER]
        if ours:
            lone = f"{', '.join(ours)} of this tool, without its {MANIFEST}"
            results.stated(LISTING, "an export is whole", [lone])
        return  # for other tools' exports, nothing says which files there should be
    listed = export.manifest.data.get("files")
    listed = listed if isinstance(listed, dict) else {}
    faults = [fault for name, size in listed.items() if (fault := _listed_fault(export.path, name, size))]
    there = sorted(path.name for path in export.path.iterdir())
    extra = [name for name in there if name not in listed and name != MANIFEST]
    read = [name for name in extra if name in (*_READ, CONFIG) or name.endswith(_RUN)]
    faults += [f"{name} is there and not listed" for name in read]
    others = [name for name in extra if name not in read]
    what = f"the {len(listed)} files that {MANIFEST} lists, with their sizes"
    what += f"; {', '.join(others[:4])} {'is' if len(others) == 1 else 'are'} not part of it" if others else ""
    results.stated(LISTING, what, faults, len(listed))


def _listed_fault(folder: Path, name: str, size: object) -> str | None:
    if not is_plain(name):
        return f"{name!r} is not the name of a file of the folder"
    if not (folder / name).is_file():
        return f"{name} is missing"
    found = (folder / name).stat().st_size
    return f"{name} has {found} bytes, not {size}" if found != size else None


def _check_values(export: ExportFolder, results: Results) -> None:
    """Check that every weight is finite: a bad row of a table would show only in a run that reads it."""
    count, faults, seen = 0, [], set()
    for graph in export.graphs:
        for name, tensor in graph.initializers.items():
            if tensor.dtype not in FLOATS:
                continue
            count += 1
            place = (str(tensor.location), tensor.offset) if isinstance(tensor, ir.ExternalTensor) else (name, None)
            if isinstance(tensor, ir.ExternalTensor):
                tensor = by_real_path(tensor, export.path)
            if place not in seen and not _finite(tensor):
                faults.append(f"{graph.path.name}: {name} holds a value that is not finite")
            seen.add(place)
    results.stated("values", f"{count} tensors, each value a finite number", faults, count)


def _finite(tensor: ir.TensorProtocol) -> bool:
    """Whether all values are finite, a block at a time."""
    values = tensor.numpy().reshape(-1)
    blocks = (values[start : start + BLOCK_ELEMENTS] for start in range(0, len(values), BLOCK_ELEMENTS))
    return all(bool(np.isfinite(block.astype(np.float32, copy=False)).all()) for block in blocks)


def _foreign(graph: Graph) -> Iterator[str]:
    """Settings of a session that load a library or write a file. They are never run here."""
    for part in ("session_options", "run_options"):
        options = graph.section.get(part, {})
        for key in options if isinstance(options, dict) else ():
            if _LOADS_OR_WRITES.search(key):
                yield f"{graph.role}.{part}.{key} is {options[key]!r}"


def _reference_faults(folder: Path, graph: Graph) -> Iterator[str]:
    for name, tensor in graph.initializers.items():
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location, length = str(tensor.location), tensor.length if tensor.length is not None else tensor.nbytes
        if not is_plain(location):
            yield f"{graph.path.name}: {name} refers to {location!r}, which is not a file's plain name"
        elif not (folder / location).is_file():
            yield f"{graph.path.name}: {name} refers to {location}, which is not there"
        elif length != tensor.nbytes:
            yield f"{graph.path.name}: {name} has {length} bytes, its type and shape call for {tensor.nbytes}"
        elif (tensor.offset or 0) < 0 or (tensor.offset or 0) + length > (folder / location).stat().st_size:
            yield f"{graph.path.name}: {name} reaches beyond the end of {location}"


def _check_session(graph: Graph, results: Results) -> None:
    """A 16-bit graph must fail on the CPU only because a kernel is missing: anything else means a broken export."""
    low = any(value.dtype in LOW for value in (*graph.model.graph.inputs, *graph.model.graph.outputs))
    name = f"session {graph.path.name}"
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        ort.InferenceSession(graph.path, options, providers=["CPUExecutionProvider"])
        results.stated(name, "onnxruntime loads it", [])
    except Exception as error:  # of many classes
        if trouble := machine_trouble(error):
            raise trouble from error
        text = str(error).splitlines()[0][:300]
        expected = low and "NOT_IMPLEMENTED" in text
        what = "onnxruntime refuses it on the CPU only because it lacks a 16-bit kernel"
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
