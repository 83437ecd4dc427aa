"""Writing a graph: the last check of its structure, then the model file and its external data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
from tqdm import tqdm

from onnxkit.errors import ExportError

# Tensors of up to so many bytes go into the model file: shape inference reads small constants there.
INLINE_BYTES = 256

# Threads that write. Casting and copying release the interpreter lock; more than a few gain nothing from one disk.
_WORKERS = min(4, os.cpu_count() or 1)


def external_bytes(model: ir.Model) -> int:
    """How many bytes of weights will be written beside the model file."""
    return sum(size for size in _sizes(model) if size > INLINE_BYTES)


def save(model: ir.Model, path: Path, progress: Callable[[int], object] | None = None) -> None:
    """Write ``path`` and, beside it, ``path`` + ``.data`` with the weights, each read when its turn comes.

    Args:
        model: The model, every initializer with its tensor.
        path: The model file.
        progress: Called with numbers of bytes as they are written.
    """
    strip(model.graph)
    check_graph(model.graph)
    written = 0

    def report(tensor: ir.TensorProtocol, _: ir.external_data.CallbackInfo) -> None:
        # onnx_ir calls before it writes a tensor: what is reported is the one before.
        nonlocal written
        if progress:
            progress(written)
        written = tensor.nbytes

    try:
        ir.save(
            model,
            path,
            external_data=f"{path.name}.data",
            size_threshold_bytes=INLINE_BYTES,
            callback=report,
            max_workers=_WORKERS,
        )
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


@contextmanager
def progress_bar(total: int, title: str) -> Iterator[Callable[[int], object]]:
    """A bar over bytes on stderr. Where stderr is no terminal, as in a CI job, it prints a line every ten seconds."""
    rhythm = {"leave": False} if sys.stderr.isatty() else {"mininterval": 10, "maxinterval": 10, "delay": 10}
    with tqdm(total=total, desc=title, unit="B", unit_scale=True, **rhythm) as bar:
        yield bar.update


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


def _sizes(model: ir.Model) -> Iterator[int]:
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value.nbytes
