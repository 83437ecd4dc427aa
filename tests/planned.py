"""Planning in process, from headers alone: what a configuration and the shapes of tensors lead to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from builder.export import DTYPE_OF
from builder.qwen35.borders import TargetOptions
from builder.qwen35.config import TargetConfig, read_target_config
from builder.qwen35.names import find_names
from builder.qwen35.packed import build_packed
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.names import draft_names
from drafters.checkpoint.reading import read_drafter
from drafters.graph.build import build_drafter
from drafters.graph.drafter import DrafterOptions
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject
from onnxkit.layers.basic import Style
from onnxkit.layers.graph import BF16
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.limits import limits
from onnxkit.weights.manifest import plan_tensors
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
    made.tensors, made.astray, made.claimed = dict(headers), {}, set()
    return made


@cache
def _drafter_module(config: DrafterConfig) -> nn.Module:
    return build_drafter(config, DrafterOptions(BF16, 64, 16, "model.embed_tokens.weight", "lm_head.weight.shared"))[1]


def plan_drafter(config: Json, headers: Headers, block: int | None = None) -> Outcome:
    """Read and plan a drafter."""
    made = checkpoint(config, headers)
    try:
        read = read_drafter(made, block_size=block)
        plain = replace(read, notes=())
        if len(plain.layers) > 4 or plain.hidden_size > 1024 or plain.block_size > 64:
            return Outcome(plain, read.notes)  # a graph of this size is not worth its time; its shapes fit nothing
        plan_tensors(_drafter_module(plain), made, draft_names(made))
    except ExportError as error:
        return Outcome(error=str(error))
    return Outcome(plain, read.notes)


@cache
def _target_module(config: TargetConfig, tied: bool) -> nn.Module:
    options = TargetOptions(64, True, False, tied, Style(DTYPE_OF["bf16"]), (), 16, 0)
    return build_packed(config, options)[1]


def plan_target(config: Json, headers: Headers) -> Outcome:
    """Read and plan a target."""
    made = checkpoint(config, headers)
    try:
        read = read_target_config(made.config)
        names = find_names(made, read)
        plain = replace(read, notes=())
        if len(plain.layer_types) > 16 or plain.hidden_size > 1024:
            return Outcome(plain, names.notes)
        plan_tensors(_target_module(replace(plain, eos_token_ids=()), names.tied), made, names)
    except ExportError as error:
        return Outcome(error=str(error))
    return Outcome((plain, names.tied), names.notes)


def graph_text(config: DrafterConfig) -> str:
    """A drafter's graph as text, its inputs, outputs and constants included."""
    model, _ = build_drafter(config, DrafterOptions(BF16, 64, 16, "model.embed_tokens.weight", "lm_head.weight.shared"))
    constants = [
        (name, value.const_value.numpy().tolist() if value.const_value is not None else str(value.shape))
        for name, value in model.graph.initializers.items()
    ]
    return ir.to_proto(model).SerializeToString().hex() + repr(constants)
