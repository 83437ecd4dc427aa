"""Planning in process, from headers alone: what a configuration and the shapes of tensors lead to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from builder.family import TargetOptions
from builder.qwen35.config import TargetConfig, read_target_config
from builder.qwen35.names import find_names
from builder.qwen35.packed import build_packed
from builder.resolved import DTYPE_OF
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.identity import identity
from drafters.checkpoint.reading import read_identified
from drafters.graph.build import build_drafter
from drafters.graph.graph_io import DrafterOptions
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject
from onnxkit.layers.graph import BF16
from onnxkit.layers.precision import Precision
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.limits import limits
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.safetensors_file import StoredTensor, read_header
from onnxkit.weights.sources import Sources
from tests.tiny_drafter import Tensors

Json = dict[str, Any]
Headers = dict[str, StoredTensor]
NOWHERE = Path("/nowhere")
_SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1}


@dataclass(frozen=True)
class Outcome:
    """What came of a plan: a configuration with its notes, or the text of the refusal."""

    config: Any = None
    notes: tuple[str, ...] = ()
    error: str = ""


def header(
    name: str, dtype: str, shape: tuple[int, ...], path: Path = Path("/nowhere"), offset: int = 0
) -> StoredTensor:
    """A tensor of which only the header exists."""
    return StoredTensor(name, dtype, shape, path, 0, int(np.prod(shape, dtype=np.int64)) * _SIZES[dtype])


def headers_of(tensors: Tensors, path: Path | None = None) -> Headers:
    """The headers of tensors; with a file, where they are stored in it."""
    if path is not None:
        return read_header(path)
    names = {"bfloat16": "BF16", "float32": "F32", "int64": "I64", "bool": "BOOL"}
    return {name: header(name, names[tensor.dtype.name], tensor.shape) for name, tensor in tensors.items()}


def checkpoint(config: Json, headers: Headers) -> Checkpoint:
    """A checkpoint without a folder."""
    made = Checkpoint.__new__(Checkpoint)
    made.folder, made.option, made.sources = NOWHERE, "-i", Sources(NOWHERE)
    made.config = JsonObject(copy.deepcopy(config), "config.json", limits(headers.values()))
    made.tensors, made.astray = dict(headers), {}
    return made


@cache
def _drafter_graph(config: DrafterConfig) -> ir.Graph:
    options = DrafterOptions(Precision.dense(BF16), 64, 16, "model.embed_tokens.weight", "lm_head.weight.shared")
    return build_drafter(config, options).graph


def plan_drafter(config: Json, headers: Headers, block: int | None = None) -> Outcome:
    """Read and plan a drafter."""
    made = checkpoint(config, headers)
    try:
        found = identity(made)
        read = read_identified(made, found, block_size=block)
        plain = replace(read, notes=())
        if len(plain.layers) > 4 or plain.hidden_size > 1024 or plain.block_size > 64:
            return Outcome(plain, read.notes)  # a graph of this size is not worth its time; its shapes fit nothing
        plan_tensors(_drafter_graph(plain), made, found.names, found.left_out)
    except ExportError as error:
        return Outcome(error=str(error))
    return Outcome(plain, read.notes)


@cache
def _target_graph(config: TargetConfig, tied: bool) -> ir.Graph:
    options = TargetOptions(64, True, False, tied, Precision.dense(DTYPE_OF["bf16"]), (), 16, 0)
    return build_packed(config, options).graph


def plan_target(config: Json, headers: Headers) -> Outcome:
    """Read and plan a target."""
    made = checkpoint(config, headers)
    try:
        read = read_target_config(made.config)
        names = find_names(made, read)
        plain = replace(read, notes=())
        if len(plain.layer_types) > 16 or plain.hidden_size > 1024:
            return Outcome(plain, names.notes)
        plan_tensors(_target_graph(replace(plain, eos_token_ids=()), names.tied), made, names, names.left_out)
    except ExportError as error:
        return Outcome(error=str(error))
    return Outcome((plain, names.tied), names.notes)


def graph_text(config: DrafterConfig) -> str:
    """A drafter's graph as text, its inputs, outputs and constants included."""
    model = build_drafter(
        config, DrafterOptions(Precision.dense(BF16), 64, 16, "model.embed_tokens.weight", "lm_head.weight.shared")
    )
    constants = [
        (name, value.const_value.numpy().tolist() if value.const_value is not None else str(value.shape))
        for name, value in model.graph.initializers.items()
    ]
    return ir.to_proto(model).SerializeToString().hex() + repr(constants)
