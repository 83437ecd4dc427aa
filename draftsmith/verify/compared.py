"""The files of an export, compared one by one with those that would be written."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from builder.option_table import DRAFTER_PATHS
from builder.output import MANIFEST
from builder.package import Package
from builder.tokenizer import FILES, GENERATION_CONFIG, TOKENIZER_CONFIG
from draftsmith.verify.folder import CONFIG, DRAFTERS, ExportFolder, Graph
from draftsmith.verify.protos import json_differences, message_differences
from onnxkit.errors import ExportError
from onnxkit.json_object import load_json
from onnxkit.progress import Groups, progress_bar

_log = logging.getLogger(__name__)

# Files that the runtime reads besides the configuration and the graphs.
_READ = {*FILES, TOKENIZER_CONFIG, GENERATION_CONFIG}


def graph_faults(graph: Graph, folder: Path) -> Iterator[str]:
    """Where a model file differs from the one in ``folder``, field by field."""
    ours, theirs = (onnx.load(place, load_external_data=False) for place in (folder / graph.path.name, graph.path))
    for fault in message_differences(theirs, ours):
        yield f"{graph.path.name}: {fault}"


# --- weights ---


@dataclass
class WeightFaults:
    """What a comparison of weights found: how many initializers and bytes were compared, and one line per fault."""

    count: int = 0
    size: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class _Against:
    """A writable file that compares what is written with what a tensor of an export holds, and stores nothing."""

    source: BinaryIO
    compared: int = 0
    different: int = 0
    first: int = -1

    def write(self, data: Any) -> int:
        """Compare the next bytes."""
        view = memoryview(data)
        if view.nbytes == 0:
            return 0
        view = view.cast("B")
        found = self.source.read(len(view))
        if view != found:
            ours = np.frombuffer(view, np.uint8)
            theirs = np.frombuffer(found.ljust(len(view), b"\0"), np.uint8)
            wrong = np.nonzero(ours != theirs)[0]
            wrong = wrong if len(found) == len(view) else np.union1d(wrong, np.arange(len(found), len(view)))
            self.first = self.compared + int(wrong[0]) if self.first < 0 else self.first
            self.different += len(wrong)
        self.compared += len(view)
        return len(view)


def weight_faults(export: ExportFolder, package: Package, folder: Path) -> WeightFaults:
    """Compare each initializer, as the graph reads it, with the bytes from the plan, a block at a time."""
    result = WeightFaults()
    found = {graph.role: graph for graph in export.graphs}
    with progress_bar(package.own_bytes, "Comparing weights") as progress:
        for planned in package.graphs:
            graph = found.get(planned.role)
            if graph is None:
                continue  # the comparison of the configuration reports it
            _log.info("comparing the weights of %s", graph.path.name)
            groups = Groups(_log.info, {name: t.byte_count for name, t in planned.tensors.initializers.items()})
            for name in planned.tensors.initializers:
                wanted = package.owner(planned, name).tensors.initializers[name].tensor
                assert wanted is not None
                groups.began(name)
                fault = _tensor_fault(export.path, graph, name, wanted)
                result.faults += [f"{graph.path.name}: {name} {fault}"] if fault else []
                result.count += 1
                result.size += wanted.nbytes
                progress(wanted.nbytes)
    for graph in export.graphs:
        data = f"{graph.path.name}.data"
        if (folder / data).is_file() and (export.path / data).is_file():
            result.faults += _rest_faults(export, data, (folder / data).stat().st_size)
    return result


def _tensor_fault(folder: Path, graph: Graph, name: str, wanted: ir.TensorProtocol) -> str | None:
    found = graph.initializers.get(name)
    if found is None:
        return "is missing"
    shapes = [list(tensor.shape.numpy()) for tensor in (found, wanted)]
    if found.dtype != wanted.dtype or shapes[0] != shapes[1]:
        return f"is {found.dtype} {shapes[0]}, would be {wanted.dtype} {shapes[1]}"
    with _opened(folder, found) as source:
        against = _Against(source)
        wanted.tofile(against)  # type: ignore[attr-defined]  # every tensor of onnx_ir has it, the protocol does not
    if not against.different:
        return None
    itemsize = max(int(wanted.dtype.itemsize), 1)
    element = [int(i) for i in np.unravel_index(min(against.first // itemsize, math.prod(shapes[0]) - 1), shapes[0])]
    return f"differs in {against.different} of {against.compared} bytes, first in element {element}"


def _opened(folder: Path, tensor: ir.TensorProtocol) -> BinaryIO:
    """A tensor's bytes as a file."""
    if not isinstance(tensor, ir.ExternalTensor):
        return io.BytesIO(tensor.tobytes())
    file = (folder / str(tensor.location)).open("rb")
    file.seek(tensor.offset or 0)
    return file


def _rest_faults(export: ExportFolder, data: str, size: int) -> Iterator[str]:
    """The bytes of a data file that belong to no tensor: zeros between tensors, and nothing after the last."""
    path = export.path / data
    if path.stat().st_size != size:
        yield f"{data} has {path.stat().st_size} bytes, would have {size}"
    tensors = [t for graph in export.graphs for t in graph.initializers.values() if isinstance(t, ir.ExternalTensor)]
    places = sorted({(t.offset or 0, (t.offset or 0) + t.nbytes) for t in tensors if str(t.location) == data})
    end = 0
    with path.open("rb") as file:
        for start, stop in [*places, (size, size)]:
            file.seek(end)
            if start > end and any(file.read(start - end)):
                yield f"{data}: bytes {end} to {start}, which belong to no tensor, are not zero"
            end = max(end, stop)


# --- the other files ---


def config_faults(export: ExportFolder, planned: Path, whole: bool) -> Iterator[str]:
    """Where the configuration differs. Without the drafter's plan, keys that depend on it are ignored on both sides."""
    found, wanted = load_json(export.path / CONFIG, once=True), load_json(planned)
    if not whole:
        for config in (found, wanted):
            config.pop("search", None)
            config["model"]["decoder"].pop("shared_initializers", None)
            for role in DRAFTERS:
                config["model"].pop(role, None)
    return json_differences(found, wanted)


def manifest_faults(export: ExportFolder, folder: Path, whole: bool) -> Iterator[str]:
    """Where ``draftsmith.json`` differs. The paths of the checkpoints are not compared."""
    found, wanted = load_json(export.path / MANIFEST), load_json(folder / MANIFEST)
    for manifest in (found, wanted):
        manifest.pop("sources", None)
        for name in DRAFTER_PATHS:
            manifest["options"].pop(name, None)
    if not whole:
        for key in ("options", "files", "notes"):
            found.pop(key, None)
            wanted.pop(key, None)
    yield from json_differences(found, wanted)


def other_files(export: ExportFolder, folder: Path) -> list[str]:
    """The names of the files that are neither graphs nor configuration: the expected ones and those present."""
    planned = {p.name for p in folder.iterdir()} - {CONFIG, MANIFEST}
    planned = {name for name in planned if not name.endswith((".onnx", ".onnx.data"))}
    return sorted(planned | {name for name in _READ if (export.path / name).exists()})


def text_faults(export: ExportFolder, folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Where files that are copied, or nearly so, differ."""
    for name in names:
        found, wanted = export.path / name, folder / name
        if not wanted.is_file():
            yield f"{name} should not be there: the checkpoint has none"
        elif not found.is_file():
            yield f"{name} is missing"
        elif found.read_bytes() != wanted.read_bytes():
            yield from _text_differences(name, found, wanted)


def _text_differences(name: str, found: Path, wanted: Path) -> Iterator[str]:
    ours, theirs = wanted.read_bytes(), found.read_bytes()
    lines: list[str] = []
    if name.endswith(".json"):
        with suppress(ExportError):  # not JSON: then it is reported as another file
            lines = list(json_differences(load_json(found), load_json(wanted)))
    if lines:
        yield from (f"{name}: {line}" for line in lines)
    else:
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        yield f"{name} is another file from byte {at} on ({len(theirs)} bytes, would be {len(ours)})"
