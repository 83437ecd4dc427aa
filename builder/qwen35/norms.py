"""Norm weights, which these checkpoints store minus 1: the graph adds the 1, once."""

from __future__ import annotations

import numpy as np

from builder.qwen35.config import TargetConfig
from builder.qwen35.names import StoredNames
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.safetensors_file import read_floats

_NORMS = ("input_layernorm", "post_attention_layernorm")
_FLOATS = ("BF16", "F16", "F32", "F64")

# The share of gains that may lie below 0: training leaves a few there.
_FEW = 0.01


def check_norms(checkpoint: Checkpoint, config: TargetConfig, names: StoredNames) -> None:
    """Refuse norm weights with the 1 already added, as some converters write them; the graph would add it again.

    Weights without it are spread around 0. If, over all layers, hardly any is negative and the median is above 0.5,
    they are gains. This reads the norms' weights, some hundred kilobytes.

    Raises:
        ExportError: The norms are stored as gains.
    """
    parts = []
    for layer in range(config.num_hidden_layers):
        for norm in _NORMS:
            stored = checkpoint.tensors.get(names(f"model.layers.{layer}.{norm}.weight"))
            if stored is None or stored.shape != (config.hidden_size,) or stored.dtype not in _FLOATS:
                continue  # the tensor plan says so
            parts.append(read_floats(stored))
    values = np.concatenate(parts) if parts else np.zeros(1, np.float32)
    values = values[np.isfinite(values)]  # others are named when they are written
    if len(values) and np.median(values) > 0.5 and np.mean(values < 0) < _FEW:
        raise ExportError(
            "The checkpoint's norms are stored in another convention.",
            where=f"{checkpoint.folder}: {names(f'model.layers.0.{_NORMS[0]}.weight')} and the other layers' norms",
            found=f"{np.mean(values < 0):.2%} of the values below 0, and a median of {np.median(values):.2f}: gains, "
            "with the 1 added already",
            accepted="weights without the 1, around 0, as transformers stores them",
            fix="Export the original release, not a conversion for another program.",
        )
