"""Lowering: a copy of an export in which every 16-bit float is 32 bits wide, for the CPU, which has no 16-bit kernels.

Paged attention, which the CPU has no kernel for at all, is put in its place as a function of standard operators.
Values are only widened, never changed: what the copy computes is what the export's weights mean, without the rounding
of 16-bit activations. Nothing of the export itself is touched.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from draftsmith.validation.paged import lower_graph

LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
F32 = ir.DataType.FLOAT

_BATCH = 4  # requests at once, at the most: a drafter's cache is allocated for all of them


def widen(export: Path, copy: Path, num_blocks: int = 256) -> None:
    """Write a copy of an export that runs on the CPU.

    Args:
        export: The export's folder.
        copy: A folder to write; it must not exist.
        num_blocks: Packed: pages of all caches, which a GPU's memory would tell.
    """
    shutil.copytree(export, copy, ignore=shutil.ignore_patterns("*.data"))
    config = json.loads((copy / "genai_config.json").read_text(encoding="utf-8"))
    _lower_config(config, num_blocks)
    (copy / "genai_config.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
    for section in _graph_sections(config):
        name = section["filename"]
        model = ir.load(export / name)
        widen_graph(model.graph)
        lower_graph(model)
        ir.save(model, copy / name, external_data=f"{name}.data")


def _graph_sections(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The sections of the configuration that name a graph: the decoder's, and a drafter's where there is one."""
    return [section for key, section in config["model"].items() if key in ("decoder", "dflash2", "dspark")]


def _lower_config(config: dict[str, Any], num_blocks: int) -> None:
    """No GPU: no provider, no share of its memory, no tensors shared on it, no cache allocated at full length."""
    for section in _graph_sections(config):
        section["session_options"]["provider_options"] = []
        section.pop("shared_initializers", None)
    config["search"]["past_present_share_buffer"] = False
    if "engine" in config:
        batching = config["engine"]["dynamic_batching"]
        batching.pop("gpu_utilization_factor", None)
        batching["num_blocks"] = num_blocks
        batching["max_batch_size"] = min(batching["max_batch_size"], _BATCH)


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
    """The tensor in float32, made when it is written, so that a large model is not held."""

    def make() -> ir.TensorProtocol:
        return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)

    return ir.LazyTensor(make, F32, ir.Shape(tensor.shape.numpy()), name=tensor.name)
