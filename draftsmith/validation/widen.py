"""Lowering: a copy of an export in which every 16-bit float is 32 bits wide, for the CPU, which has no 16-bit kernels.

Paged attention, for which the CPU has no kernel at all, is replaced by a function of standard operators.
Values are only widened, never changed: what the copy computes is what the export's weights mean, without the rounding
of 16-bit activations. The export itself is not touched, nothing outside the copy is written, and only the export's
graphs are run: from the configuration, only what the runtime needs for them is kept.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from builder.tokenizer import FILES, GENERATION_CONFIG, TOKENIZER_CONFIG
from drafters.checkpoint.kinds import RuntimeKind
from draftsmith.validation.paged import lower_graph
from genai_config.sections import BlockDrafter, Decoder
from onnxkit.json_object import load_json

LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
F32 = ir.DataType.FLOAT

_SECTIONS = ("decoder", *RuntimeKind)  # sections of the configuration, each with a graph
BATCH = 4  # requests at once, at most: a drafter's cache is allocated for all of them


def widen(export: Path, copy: Path, num_blocks: int = 256) -> None:
    """Write a copy of an export that runs on the CPU.

    Args:
        export: The export's folder.
        copy: A folder to write; it must not exist.
        num_blocks: Packed layout: pages in all caches, which on a GPU depends on its memory.
    """
    copy.mkdir(parents=True)
    for name in (*FILES, TOKENIZER_CONFIG, GENERATION_CONFIG):
        if (export / name).is_file():
            shutil.copyfile(export / name, copy / name)
    config = needed_config(load_json(export / "genai_config.json"))
    _lower_config(config, num_blocks)
    (copy / "genai_config.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
    for section in _graph_sections(config):
        name = section["filename"]
        model = ir.load(export / name)
        for value in model.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = by_real_path(value.const_value, export)
        widen_graph(model.graph)
        lower_graph(model)
        ir.save(model, copy / name, external_data=f"{name}.data")


# Keys of the configuration that a run of the graphs needs. Others could name files elsewhere, libraries, other models.
_MODEL = {"type", "vocab_size", "context_length"}
_GRAPH = {f.name for kind in (Decoder, BlockDrafter) for f in dataclasses.fields(kind)}
_GRAPH |= {"sliding_window", "layer_types", "conv_cache_size"}
_GRAPH |= {"sampled_proposal", "independent_sampling", "sampling_temperature", "sampling_top_p", "sampling_min_p"}
_TOP = {"model", "search", "engine", "speculative"}


def is_plain(name: str) -> bool:
    """Whether a name is that of a file in the folder itself, and not a path."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def by_real_path(tensor: ir.ExternalTensor, folder: Path) -> ir.ExternalTensor:
    """A tensor of an export by the real path of its data: onnx_ir does not follow links, which the Hub's cache uses.

    Raises:
        ValueError: Its data file is named by a path.
    """
    if not is_plain(str(tensor.location)):
        raise ValueError(f"{tensor.name} refers to {str(tensor.location)!r}, which is not the name of a file")
    path = (folder / str(tensor.location)).resolve()
    return ir.ExternalTensor(
        path, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=str(tensor.name)
    )


def needed_config(config: dict[str, Any]) -> dict[str, Any]:
    """The parts of a configuration that a run of the graphs needs.

    Raises:
        ValueError: A graph's file name is a path.
    """
    needed = {key: value for key, value in config.items() if key in _TOP}
    model = config["model"]
    sections = {key: model[key] for key in _SECTIONS if key in model}
    plain = {key: value for key, value in model.items() if key in _MODEL or key.endswith("_token_id")}
    needed["model"] = plain | {name: {k: v for k, v in s.items() if k in _GRAPH} for name, s in sections.items()}
    for section in sections.values():
        if not is_plain(section["filename"]):
            raise ValueError(f"filename {section['filename']!r} is not the name of a file of the folder")
    return needed


def dropped_keys(config: dict[str, Any]) -> list[str]:
    """The parts of a configuration that are not run: further models and their settings."""
    kept, sections = needed_config(config), _SECTIONS
    names = [key for key in config if key not in kept]
    names += [f"model.{key}" for key in config["model"] if key not in kept["model"]]
    for name in sections:
        names += [f"model.{name}.{key}" for key in config["model"].get(name, {}) if key not in _GRAPH]
    return names


def _graph_sections(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The sections of the configuration that name a graph: the decoder's, and a drafter's if there is one."""
    return [config["model"][key] for key in _SECTIONS if key in config["model"]]


def _lower_config(config: dict[str, Any], num_blocks: int) -> None:
    """No GPU: no provider, no share of its memory, no tensors shared on it, no cache allocated at full length."""
    for section in _graph_sections(config):
        section["session_options"] = {"log_id": "draftsmith", "provider_options": []}
        section.pop("shared_initializers", None)
    config.setdefault("search", {})["past_present_share_buffer"] = False
    if "engine" in config:
        batching = config["engine"]["dynamic_batching"]
        batching.pop("gpu_utilization_factor", None)
        batching["num_blocks"] = num_blocks
        batching["max_batch_size"] = min(batching.get("max_batch_size", BATCH), BATCH)


def widen_graph(graph: ir.Graph) -> None:
    """Make every 16-bit float of a graph float32: inputs, outputs, initializers, and what Cast nodes cast to."""
    for value in (*graph.inputs, *graph.outputs):
        if value.dtype in LOW:
            value.type = ir.TensorType(F32)
    for value in graph.initializers.values():
        if value.dtype in LOW and value.const_value is not None:
            value.const_value = _widened(value.const_value)
            value.type = ir.TensorType(F32)
    for node in graph:
        for output in node.outputs:
            if output.dtype in LOW:
                output.type = ir.TensorType(F32)
        to = node.attributes.get("to")
        if node.op_type == "Cast" and to is not None and to.as_int() in LOW:
            node.attributes["to"] = ir.AttrInt64("to", F32)


def _widened(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """The tensor in float32, made when it is written, so that a large model is not held in memory."""

    def make() -> ir.TensorProtocol:
        return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)

    return ir.LazyTensor(make, F32, ir.Shape(tensor.shape.numpy()), name=tensor.name)
