"""Planning: what each initializer of a graph is made of, found and checked without reading any weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxkit.errors import ExportError, listed
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.parameters import Rows, Shared, Source, Table, Weight
from onnxkit.weights.safetensors_file import DTYPES, StoredTensor
from onnxkit.weights.streamed import RowMath, StreamedTensor, Writer, byte_range, computed, converted, copied
from onnxkit.weights.tensor_plan import Disposition, PlannedTensor, TensorPlan

I64 = ir.DataType.INT64


@dataclass
class _Problems:
    """Everything that does not fit, collected so that one message names it all."""

    missing: list[str] = field(default_factory=list)
    astray: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    mistyped: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def raise_if_any(self, folder: Path) -> None:
        """Raise a single error that names all of it, if there is any."""
        groups = {
            "missing": self.missing,
            "listed wrongly in the index": self.astray,
            "of another shape": self.misshapen,
            "of a type that cannot be exported": self.mistyped,
            "read by nothing": self.unread,
        }
        found = [f"{title} ({len(names)}):\n{listed(names)}" for title, names in groups.items() if names]
        if found:
            raise ExportError(
                "The checkpoint's tensors do not match its config.json.",
                where=folder,
                found="\n".join(found),
                accepted="each tensor that the config calls for, in its shape, as F32, F16 or BF16, and no other",
                fix="Compare config.json with the weights: do both belong to one release, complete and unpacked?",
            )


def plan_tensors(
    graph: ir.Graph,
    checkpoint: Checkpoint,
    stored_name: Callable[[str], str],
    left_out: Mapping[str, str],
    *,
    allow_nonfinite: bool = False,
) -> TensorPlan:
    """Plan what every initializer of a built graph is made of.

    Args:
        graph: The graph. Its initializers are parameters that say where they come from, or constants.
        checkpoint: Where the weights are.
        stored_name: The checkpoint's name for a name in the graph.
        left_out: The stored tensors that the graph has no use for, each with the reason.
        allow_nonfinite: Whether weights may be infinite or NaN; otherwise writing them fails.

    Raises:
        ExportError: Tensors are missing, misshapen, of a type that is not floating point, or read by nothing.
    """
    problems = _Problems()
    takers: dict[tuple[str, int], str] = {}
    planned: dict[str, PlannedTensor] = {}
    named: set[str] = set()
    for name, value in graph.initializers.items():
        if isinstance(value, Weight):
            names = [stored_name(source) for source in value.source_names()]
            named.update(names)
            for source in names:
                if takers.setdefault((source, value.source.output), name) != name:
                    raise RuntimeError(f"{source} is taken by {takers[source, value.source.output]} and by {name}")
            if stored := _find_all(checkpoint, names, value, problems):
                planned[name] = _weight(value, stored, allow_nonfinite)
        elif isinstance(value, Table):
            planned[name] = _planned(value, value.dims, Disposition.COMPUTED, tensor=_table(value))
        elif isinstance(value, Shared):
            planned[name] = _planned(value, value.dims, Disposition.SHARED)
        elif value.const_value is not None:
            constant = value.const_value
            shape = tuple(int(size) for size in constant.shape.numpy())
            planned[name] = PlannedTensor(name, shape, constant.dtype, Disposition.COMPUTED, tensor=constant)
        else:
            raise RuntimeError(f"nothing says where initializer {name!r} comes from")
    problems.unread = [name for name in checkpoint.tensors if name not in named and name not in left_out]
    problems.raise_if_any(checkpoint.folder)
    astray = {name: wrong for name, wrong in checkpoint.astray.items() if name not in named and name not in left_out}
    return TensorPlan(planned, dict(left_out), astray)


def _planned(value: ir.Value, shape: tuple[int, ...], disposition: Disposition, **more: Any) -> PlannedTensor:
    assert value.dtype is not None
    return PlannedTensor(str(value.name), shape, value.dtype, disposition, **more)


def _find_all(
    checkpoint: Checkpoint, names: list[str], parameter: Weight, problems: _Problems
) -> tuple[StoredTensor, ...] | None:
    """The stored tensors of a parameter; None if one of them does not fit."""
    pairs = zip(names, parameter.source.rows, strict=True)
    found = [_find(checkpoint, name, rows, parameter, problems) for name, rows in pairs]
    stored = tuple(tensor for tensor in found if tensor is not None)
    return stored if len(stored) == len(found) else None


def _find(checkpoint: Checkpoint, name: str, rows: Rows, parameter: Weight, problems: _Problems) -> StoredTensor | None:
    stored = checkpoint.tensors.get(name)
    if stored is None:
        wrong = checkpoint.astray.get(name)
        problems.astray.append(f"{name}: {wrong}") if wrong else problems.missing.append(name)
        return None
    expected = (rows.size, *parameter.source.inner)
    if stored.shape != expected:
        problems.misshapen.append(f"{name}: {list(stored.shape)}, not {list(expected)}")
        return None
    if stored.dtype not in DTYPES or (stored.dtype == "I64") != (parameter.dtype == I64):
        problems.mistyped.append(f"{name}: {stored.dtype}")
        return None
    return stored


def _weight(parameter: Weight, stored: tuple[StoredTensor, ...], allow_nonfinite: bool) -> PlannedTensor:
    name, dtype, source = str(parameter.name), parameter.dtype, parameter.source
    assert dtype is not None
    as_stored = source.transform.rows is None
    pieces = [(tensor, rows) for tensor, part in zip(stored, source.rows, strict=True) for rows in part.taken]
    unchanged = [as_stored and ir.DataType.from_numpy(DTYPES[tensor.dtype]) == dtype for tensor, _ in pieces]
    tensor: ir.TensorProtocol
    if allow_nonfinite and len(pieces) == 1 and unchanged[0]:
        tensor = byte_range(*pieces[0], name, parameter.dims)  # onnx_ir copies this in the kernel if it can
    else:
        math = None if as_stored else _output(source)
        writers: list[Writer] = [
            copied(piece, rows, allow_nonfinite) if same else converted(piece, rows, math, dtype, allow_nonfinite)
            for (piece, rows), same in zip(pieces, unchanged, strict=True)
        ]
        tensor = StreamedTensor(name, dtype, parameter.dims, writers)
    disposition = Disposition.COPIED if all(unchanged) else Disposition.CONVERTED
    said = {"sources": stored, "transform": source.transform.name, "tensor": tensor}
    return _planned(parameter, parameter.dims, disposition, **said)


def _output(source: Source) -> RowMath:
    return lambda block: source.transform.outputs(block)[source.output]


def _table(parameter: Table) -> ir.TensorProtocol:
    shape = parameter.dims
    count, width = shape if len(shape) == 2 else (1, shape[0])
    assert parameter.dtype is not None
    return StreamedTensor(
        str(parameter.name), parameter.dtype, shape, [computed(parameter.rows, count, width, parameter.dtype)]
    )
