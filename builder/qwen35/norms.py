"""Norm weights, which these checkpoints store without their 1: the graph adds it, once."""

from __future__ import annotations

from builder.qwen35.config import TargetConfig
from builder.qwen35.names import StoredNames
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.safetensors_file import read_floats

_NORMS = ("input_layernorm", "post_attention_layernorm")


def check_norms(checkpoint: Checkpoint, config: TargetConfig, names: StoredNames) -> None:
    """Refuse norms that are stored with their 1, as some converters write them; the graph would add another.

    Weights without it lie around 0 on both sides. If, over all layers, not one lies below 0 and their mean is that of a
    gain, they are gains. This reads the norms' weights, some hundred kilobytes.

    Raises:
        ExportError: They are.
    """
    total, count = 0.0, 0
    for layer in range(config.num_hidden_layers):
        for norm in _NORMS:
            stored = checkpoint.tensors.get(names(f"model.layers.{layer}.{norm}.weight"))
            if stored is None or stored.shape != (config.hidden_size,) or stored.dtype not in ("BF16", "F16", "F32"):
                continue  # the tensor plan says so
            values = read_floats(stored)
            if values.min() < 0:
                return
            total, count = total + float(values.sum()), count + len(values)
    if count and total / count > 0.5:
        raise ExportError(
            "The checkpoint's norms are stored in another convention.",
            where=f"{checkpoint.folder}: {names(f'model.layers.0.{_NORMS[0]}.weight')} and the other layers' norms",
            found=f"no value below 0, and a mean of {total / count:.2f}: gains, with the 1 added already",
            accepted="weights without the 1, around 0, as transformers stores them",
            fix="Export the original release, not a conversion for another program.",
        )
