"""Writing a graph: the last check of its structure, then the model file and its external data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import onnx_ir as ir

from onnxkit.errors import ExportError
from onnxkit.progress import Groups
from onnxkit.weights.streamed import StreamedTensor, read_exactly
from onnxkit.weights.tensor_plan import INLINE_BYTES, TensorPlan

_log = logging.getLogger(__name__)

# What a model file names as its producer.
PRODUCER = "draftsmith"

# Threads that write. Casting and copying release the interpreter lock; more than a few gain nothing on a single disk.
_WORKERS = min(4, os.cpu_count() or 1)


def stored_tensors(path: Path, names: Iterable[str]) -> dict[str, ir.ExternalTensor]:
    """Where the data file of a saved model holds some of its initializers, by name. No weights are read."""
    initializers = ir.load(path).graph.initializers
    found = {}
    for name in names:
        tensor = initializers[name].const_value
        assert isinstance(tensor, ir.ExternalTensor), f"{name} is not in a data file"
        found[name] = tensor
    return found


def save(
    model: ir.Model,
    path: Path,
    plan: TensorPlan,
    progress: Callable[[int], object] | None = None,
    shared: Mapping[str, ir.ExternalTensor] | None = None,
) -> None:
    """Write ``path`` and, beside it, ``path`` + ``.data`` with the weights, each read when its turn comes.

    Args:
        model: The model.
        path: The model file.
        plan: What its initializers are made of.
        progress: Called with the number of bytes just written.
        shared: Where the bytes are of the initializers that the plan shares with another graph in the folder.
    """
    strip(model.graph)
    check_graph(model.graph, plan)
    model.producer_name = PRODUCER
    written = 0
    level = logging.INFO if progress else logging.DEBUG  # a preview of what would be written is not a step
    _log.log(level, "%s and its data: %d nodes", path.name, len(model.graph))
    own = [tensor for tensor in plan.initializers.values() if tensor.tensor is not None]
    groups = Groups(partial(_log.log, level), {tensor.name: tensor.byte_count for tensor in own})

    def report(tensor: ir.TensorProtocol, _: ir.external_data.CallbackInfo) -> None:
        # onnx_ir calls this before it writes a tensor, so what is reported is the one before.
        nonlocal written
        if progress:
            progress(written)
        written = tensor.nbytes
        groups.began(tensor.name)

    try:
        with _external(model, path, plan, shared or {}, report):
            ir.save(model, path)
    except OSError as error:
        if error.errno is not None:
            raise
        raise ExportError(  # a short read, which the system itself does not treat as an error
            "A file of the checkpoint changed while it was being read.",
            where="a file that was complete when the export began",
            found=error,
            accepted="files that stay as they are until the export has ended",
            fix="Wait until the checkpoint is written, then export again.",
        ) from error
    if progress:
        progress(written)


def strip(graph: ir.Graph) -> None:
    """Remove what the graph builder records about modules and classes, so that refactoring does not change the file."""
    for node in graph:
        node.metadata_props.clear()


def check_graph(graph: ir.Graph, plan: TensorPlan) -> None:
    """Check that the graph is complete before anything is written. Any error here is a bug in this program.

    Raises:
        RuntimeError: A node reads a value that nothing before it produces, two values share a name, the initializers
            are not those of the plan, one of them has no reader, or nothing produces an output.
    """
    known: set[str] = set()
    read: set[str] = set()

    def make(name: str | None, what: str) -> None:
        if not name or name in known:
            raise RuntimeError(f"{what} {name!r}: the name is empty or not the only one")
        known.add(name)

    for value in graph.inputs:
        make(value.name, "graph input")
    for value in graph.initializers.values():
        make(value.name, "initializer")
    if graph.initializers.keys() != plan.initializers.keys():
        odd = sorted(graph.initializers.keys() ^ plan.initializers.keys())
        raise RuntimeError(f"initializers {odd} are not both in the graph and in its plan")
    for node in graph:
        inputs = [str(value.name) for value in node.inputs if value is not None]
        if unmade := [name for name in inputs if name not in known]:
            raise RuntimeError(f"node {node.name!r} reads {unmade}, which nothing before it makes")
        read.update(inputs)
        for output in node.outputs:
            make(output.name, "node output")
    outputs = [str(value.name) for value in graph.outputs]
    if len(set(outputs)) != len(outputs) or any(v.producer() is None for v in graph.outputs):
        raise RuntimeError(f"graph outputs {outputs} are not distinct values made by nodes")
    if unread := [name for name in graph.initializers if name not in read]:
        raise RuntimeError(f"initializers {unread} are read by nothing")
    nodes = [n.name for n in graph]
    if len(set(nodes)) != len(nodes):
        raise RuntimeError("two nodes have one name")


@contextmanager
def _external(
    model: ir.Model,
    path: Path,
    plan: TensorPlan,
    shared: Mapping[str, ir.ExternalTensor],
    report: Callable[..., None],
) -> Iterator[None]:
    """Write the weights; within it, initializers say where they are. (``ir.save`` alone would write shared ones.)"""
    tensors = {name: t.tensor for name, t in plan.initializers.items() if t.tensor is not None}
    large = [name for name, tensor in tensors.items() if tensor.nbytes > INLINE_BYTES]
    written: dict[str, ir.TensorProtocol] = dict(shared)
    for name, tensor in tensors.items():
        if tensor.nbytes <= INLINE_BYTES:
            # Made here rather than by ir.save, which wraps the error that a bad weight raises in its own.
            written[name] = _in_memory(tensor)
    external = ir.external_data.convert_tensors_to_external(
        [tensors[name] for name in large],
        path.parent,
        f"{path.name}.data",
        callback=report,
        max_workers=_WORKERS,
    )
    written |= dict(zip(large, external, strict=True))
    values = model.graph.initializers
    before = {name: values[name].const_value for name in values}
    try:
        for name in values:
            values[name].const_value = written[name]
        yield
    finally:
        for name, original in before.items():
            values[name].const_value = original


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A small tensor, read into memory. onnx_ir would map the file that holds it, and crash if that is cut short."""
    if isinstance(tensor, StreamedTensor):
        return tensor.held()
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    with Path(tensor.path).open("rb") as file:
        file.seek(tensor.offset or 0)
        data = read_exactly(file, tensor.nbytes, Path(tensor.path))
    array = data.view(tensor.dtype.numpy()).reshape(tensor.shape.numpy())
    return ir.Tensor(array, dtype=tensor.dtype, name=tensor.name)
