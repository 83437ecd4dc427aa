"""The copies of an export that can be run: lowered to float32 for the CPU, or as it is stored for a GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from draftsmith.validation.session import GPU, GPU_AND_CPU
from draftsmith.validation.widen import BATCH, needed_config, widen
from draftsmith.verify.files import LOW
from draftsmith.verify.folder import CONFIG, ExportFolder
from draftsmith.verify.machine import check_memory, check_room
from draftsmith.verify.running import Running
from draftsmith.verify.sources import TORCH, Target
from draftsmith.verify.target import activation_type
from onnxkit.errors import ExportError

# How far a correct implementation may be from the truth, as a multiple of PyTorch's own error in the same type: the
# same results are rounded, but not in the same places. docs/verify.md has the measurements.
MULTIPLE = 3.0

# Of the settings of a CUDA session, those that change how it computes; others name streams and libraries.
_SETTINGS = ("enable_cuda_graph",)


@dataclass(frozen=True)
class Copy:
    """A kind of copy.

    Attributes:
        name: The name of the step that makes it.
        check: Checks that there is room for it and for the reference, and that the export can be run this way.
        make: Makes it in a folder of its own.
    """

    name: str
    check: Callable[[ExportFolder, Target | None], None]
    make: Callable[[ExportFolder, Path], Running]


def _check_lowered(export: ExportFolder, target: Target | None) -> None:
    copy = sum(_lowered_bytes(graph.model.graph) for graph in export.graphs)
    check_room(copy)
    check_memory(copy + _reference_bytes(target, 4))


def _lower(export: ExportFolder, work: Path) -> Running:
    widen(export.path, work / "low")
    return Running(work / "low", work)


def _check_stored(export: ExportFolder, target: Target | None) -> None:
    if activation_type(export.decoder) not in LOW:
        raise ExportError(
            "An export in float32 is proved on the CPU.",
            where=export.decoder.path,
            found="caches in float32",
            accepted="an export in bfloat16 or float16, for --provider cuda",
            fix="Leave out --provider.",
        )
    check_memory(_reference_bytes(target, 4 + 2))  # in float32 and in the export's own type


def _link(export: ExportFolder, work: Path) -> Running:
    """The export's own files, with a configuration that has only what a run needs."""
    folder = work / "export"
    folder.mkdir()
    for path in export.path.iterdir():
        if path.is_file() and path.name != CONFIG:
            (folder / path.name).symlink_to(path.resolve())
    config = needed_config(export.config)
    for graph in export.graphs:
        section = config["model"][graph.role]
        section["session_options"] = _session_options(section)
    batching = config.get("engine", {}).get("dynamic_batching", {})
    if "max_batch_size" in batching:  # a drafter's cache is allocated for all of them
        batching["max_batch_size"] = min(batching["max_batch_size"], BATCH)
    (folder / CONFIG).write_text(json.dumps(config, indent=4), encoding="utf-8")
    dtype = TORCH[activation_type(export.decoder)]
    place = GPU if export.packed else GPU_AND_CPU
    data = {path.resolve().parent for path in export.path.iterdir() if path.is_file()}
    return Running(folder, work, place, data=data.pop(), limit=torch.finfo(dtype).eps, multiple=MULTIPLE)


def _session_options(section: dict[str, Any]) -> dict[str, Any]:
    """A CUDA session with those of a section's own settings that are known to be harmless."""
    given = section.get("session_options", {}).get("provider_options", [])
    own: dict[str, Any] = next((options["cuda"] for options in given if isinstance(options.get("cuda"), dict)), {})
    kept = {key: own[key] for key in _SETTINGS if key in own}
    return {"log_id": "draftsmith", "provider_options": [{"cuda": kept}]}


def _lowered_bytes(graph: ir.Graph) -> int:
    tensors = [value.const_value for value in graph.initializers.values() if value.const_value is not None]
    return sum(tensor.nbytes * (2 if tensor.dtype in LOW else 1) for tensor in tensors)


def _reference_bytes(target: Target | None, each: int) -> int:
    stored = target.checkpoint.tensors.values() if target else ()
    return sum(each * math.prod(tensor.shape) for tensor in stored)


LOWERED = Copy("lowering", _check_lowered, _lower)
STORED = Copy("linking", _check_stored, _link)
COPIES = {"cpu": LOWERED, "cuda": STORED}
