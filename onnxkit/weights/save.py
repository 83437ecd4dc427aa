"""Writing a graph: the last check of its structure, then the model file and its external data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from onnxkit.errors import ExportError
from onnxkit.progress import Groups
from onnxkit.weights.parameters import Shared
from onnxkit.weights.streamed import StreamedTensor, read_exactly

# Tensors of up to so many bytes go into the model file: shape inference reads small constants there.
INLINE_BYTES = 256

_log = logging.getLogger(__name__)

# What a model file says of who made it.
PRODUCER = "draftsmith"

# Threads that write. Casting and copying release the interpreter lock; more than a few gain nothing from one disk.
_WORKERS = min(4, os.cpu_count() or 1)


def external_bytes(model: ir.Model) -> int:
    """How many bytes of weights will be written beside the model file. What another file holds is not among them."""
    return sum(size for size in _sizes(model) if size > INLINE_BYTES)


def shared_parameters(model: ir.Model) -> list[Shared]:
    """The initializers whose bytes another graph's data file holds."""
    return [value for value in model.graph.initializers.values() if isinstance(value, Shared)]


def stored_tensors(path: Path, names: Iterable[str]) -> dict[str, ir.ExternalTensor]:
    """Where the data file of a saved model holds some of its initializers, by name. No weight is read."""
    initializers = ir.load(path).graph.initializers
    found = {}
    for name in names:
        tensor = initializers[name].const_value
        assert isinstance(tensor, ir.ExternalTensor), f"{name} is not in a data file"
        found[name] = tensor
    return found


def save(
    model: ir.Model, path: Path, progress: Callable[[int], object] | None = None, kept: Collection[str] = ()
) -> None:
    """Write ``path`` and, beside it, ``path`` + ``.data`` with the weights, each read when its turn comes.

    Args:
        model: The model, every initializer with its tensor.
        path: The model file.
        progress: Called with numbers of bytes as they are written.
        kept: Initializers whose bytes another file of the folder holds. They are referred to, not written.
    """
    strip(model.graph)
    check_graph(model.graph)
    model.producer_name = PRODUCER
    written = 0
    groups = Groups(_log.info, _own_sizes(model, kept))

    def report(tensor: ir.TensorProtocol, _: ir.external_data.CallbackInfo) -> None:
        # onnx_ir calls before it writes a tensor: what is reported is the one before.
        nonlocal written
        if progress:
            progress(written)
        written = tensor.nbytes
        if not isinstance(tensor, _Hole):
            groups.began(tensor.name)

    try:
        with _external(model, path, kept, report):
            ir.save(model, path)
    except OSError as error:
        if error.errno is not None:
            raise
        raise ExportError(  # a short read, which the system itself does not call an error
            "A file of the checkpoint has changed while it was read.",
            where="a file that was complete when the export began",
            found=error,
            accepted="files that stay as they are until the export has ended",
            fix="Wait until the checkpoint is written, then export again.",
        ) from error
    if progress:
        progress(written)


class _Hole(ir.LazyTensor):
    """A tensor that leaves its place in the data file as it is."""

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        super().__init__(lambda: tensor, tensor.dtype, ir.Shape(list(tensor.shape.numpy())), name=tensor.name)

    def tofile(self, file: BinaryIO) -> None:
        """Write nothing."""


@contextmanager
def hollow(*models: ir.Model) -> Iterator[None]:
    """Within it, models are saved without their weights: model files as they will be, data files of holes.

    A file of holes takes no room on the disk, and what would be written can be looked at without writing it.
    """
    values = [value for model in models for value in model.graph.initializers.values()]
    kept = [(v, v.const_value) for v in values if v.const_value is not None and v.const_value.nbytes > INLINE_BYTES]
    for value, tensor in kept:
        value.const_value = _Hole(tensor)
    try:
        yield
    finally:
        for value, tensor in kept:
            value.const_value = tensor


def strip(graph: ir.Graph) -> None:
    """Remove what the graph builder notes of modules and classes, so that a refactoring does not change the file."""
    for node in graph:
        node.metadata_props.clear()


def check_graph(graph: ir.Graph) -> None:
    """See that the graph is whole, before anything is written. What is wrong here is a bug of this program.

    Raises:
        RuntimeError: A node reads a value that nothing makes before it, two values have one name, an initializer has no
            tensor or no reader, or an output is made by nothing.
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
        if value.const_value is None:
            raise RuntimeError(f"initializer {value.name!r} has no tensor")
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
def _external(model: ir.Model, path: Path, kept: Collection[str], report: Callable[..., None]) -> Iterator[None]:
    """Write the weights; within it, initializers say where they are. (``ir.save`` alone would write what is kept.)"""
    own = {name: value for name, value in model.graph.initializers.items() if name not in kept}
    tensors = {name: value.const_value for name, value in own.items() if value.const_value is not None}
    large = [name for name, tensor in tensors.items() if tensor.nbytes > INLINE_BYTES]
    small = [name for name, tensor in tensors.items() if tensor.nbytes <= INLINE_BYTES]
    # Made here rather than by ir.save, which wraps what a bad weight raises in an error of its own.
    held = {name: tensor.held() for name in small if isinstance(tensor := tensors[name], StreamedTensor)}
    small = [name for name in small if isinstance(tensors[name], ir.ExternalTensor)]
    read = [_in_memory(tensors[name]) for name in small]
    written = ir.external_data.convert_tensors_to_external(
        [tensors[name] for name in large],
        path.parent,
        f"{path.name}.data",
        callback=report,
        max_workers=_WORKERS,
    )
    for name, tensor in (*held.items(), *zip([*small, *large], [*read, *written], strict=True)):
        own[name].const_value = tensor
    try:
        yield
    finally:
        for name, original in tensors.items():
            own[name].const_value = original


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A small tensor of a file, read. onnx_ir would map the file, and die where somebody cuts it short."""
    assert isinstance(tensor, ir.ExternalTensor)
    with Path(tensor.path).open("rb") as file:
        file.seek(tensor.offset or 0)
        data = read_exactly(file, tensor.nbytes, Path(tensor.path))
    array = data.view(tensor.dtype.numpy()).reshape(tensor.shape.numpy())
    return ir.Tensor(array, dtype=tensor.dtype, name=tensor.name)


def _own_sizes(model: ir.Model, kept: Collection[str]) -> dict[str, int]:
    """The bytes of the tensors that go to the model's own data file, by name."""
    values = {name: value.const_value for name, value in model.graph.initializers.items() if name not in kept}
    return {
        name: tensor.nbytes for name, tensor in values.items() if tensor is not None and tensor.nbytes > INLINE_BYTES
    }


def _sizes(model: ir.Model) -> Iterator[int]:
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value.nbytes
