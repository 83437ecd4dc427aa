"""The tensor plan: for each initializer, where its bytes come from; for each stored tensor, who takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir
from onnxscript import nn

from onnxkit.errors import ExportError, listed
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.parameters import Rows, Table, Weight
from onnxkit.weights.safetensors_file import DTYPES, StoredTensor
from onnxkit.weights.streamed import StreamedTensor, Writer, byte_range, computed, converted, copied

I64 = ir.DataType.INT64


@dataclass
class _Problems:
    """What does not fit, collected so that one message names all of it."""

    missing: list[str] = field(default_factory=list)
    astray: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    mistyped: list[str] = field(default_factory=list)
    unclaimed: list[str] = field(default_factory=list)

    def raise_if_any(self, folder: Path) -> None:
        """Raise the one error that names all of it."""
        groups = {
            "missing": self.missing,
            "of which the index is wrong": self.astray,
            "of another shape": self.misshapen,
            "of a type that cannot be exported": self.mistyped,
            "read by nothing": self.unclaimed,
        }
        found = [f"{title} ({len(names)}):\n{listed(names)}" for title, names in groups.items() if names]
        if found:
            raise ExportError(
                "The checkpoint's tensors are not those that its config.json describes.",
                where=folder,
                found="\n".join(found),
                accepted="each tensor that the config calls for, in its shape, as F32, F16 or BF16, and no other",
                fix="Compare config.json with the weights: do both belong to one release, complete and unpacked?",
            )


def plan_tensors(
    model: nn.Module, checkpoint: Checkpoint, stored_name: Callable[[str], str], *, allow_nonfinite: bool = False
) -> None:
    """Give every initializer of a built graph the tensor that will be written, without reading a weight.

    Args:
        model: The root module, after its graph was built.
        checkpoint: Where the weights are. What the export leaves out must be claimed before. What is shared with
            another graph gets its tensor later, from that graph's files.
        stored_name: The checkpoint's name for a name in the graph.
        allow_nonfinite: Whether weights may be infinite or NaN; otherwise writing them fails.

    Raises:
        ExportError: Tensors are missing, misshapen, of a type that is not floating point, or left unclaimed.
    """
    problems = _Problems()
    takers: dict[str, str] = {}
    for parameter in {id(p): p for p in model.parameters()}.values():
        if isinstance(parameter, Table):
            parameter.const_value = _table(parameter)
        elif isinstance(parameter, Weight):
            names = [stored_name(name) for name in parameter.source_names()]
            for name in names:
                if takers.setdefault(name, str(parameter.name)) != parameter.name:
                    raise RuntimeError(f"{name} is taken by {takers[name]} and by {parameter.name}")
            checkpoint.claim(names)
            stored = [
                found
                for name, rows in zip(names, parameter.sources, strict=True)
                if (found := _find(checkpoint, name, rows, parameter, problems))
            ]
            if len(stored) == len(names):
                parameter.const_value = _weight(parameter, stored, allow_nonfinite)
    problems.unclaimed = checkpoint.unclaimed()
    problems.raise_if_any(checkpoint.folder)


def _find(checkpoint: Checkpoint, name: str, rows: Rows, parameter: Weight, problems: _Problems) -> StoredTensor | None:
    stored = checkpoint.tensors.get(name)
    if stored is None:
        wrong = checkpoint.astray.get(name)
        problems.astray.append(f"{name}: {wrong}") if wrong else problems.missing.append(name)
        return None
    expected = parameter.stored_shape or (rows.size, *parameter.dims[1:])
    if stored.shape != expected:
        problems.misshapen.append(f"{name}: {list(stored.shape)}, not {list(expected)}")
        return None
    if stored.dtype not in DTYPES or (stored.dtype == "I64") != (parameter.dtype == I64):
        problems.mistyped.append(f"{name}: {stored.dtype}")
        return None
    return stored


def _weight(parameter: Weight, stored: list[StoredTensor], allow_nonfinite: bool) -> ir.TensorProtocol:
    name, dtype = str(parameter.name), parameter.dtype
    assert dtype is not None
    math = parameter.transform.math
    if parameter.stored_shape:
        stored = [replace(tensor, shape=parameter.dims) for tensor in stored]
    pieces = [(tensor, rows) for tensor, source in zip(stored, parameter.sources, strict=True) for rows in source.taken]
    unchanged = [math is None and ir.DataType.from_numpy(DTYPES[tensor.dtype]) == dtype for tensor, _ in pieces]
    if allow_nonfinite and len(pieces) == 1 and unchanged[0]:
        return byte_range(*pieces[0], name)  # which onnx_ir copies in the kernel where it can
    writers: list[Writer] = [
        copied(tensor, rows, allow_nonfinite) if same else converted(tensor, rows, math, dtype, allow_nonfinite)
        for (tensor, rows), same in zip(pieces, unchanged, strict=True)
    ]
    return StreamedTensor(name, dtype, parameter.dims, writers)


def _table(parameter: Table) -> ir.TensorProtocol:
    shape = parameter.dims
    count, width = shape if len(shape) == 2 else (1, shape[0])
    assert parameter.dtype is not None
    return StreamedTensor(
        str(parameter.name), parameter.dtype, shape, [computed(parameter.rows, count, width, parameter.dtype)]
    )
