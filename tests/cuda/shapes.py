"""Targets with the head shapes of the releases, and little else: four layers, a narrow stream, the tiny vocabulary.

What the runtime's CUDA kernels accept, and which of them it takes, depends on the heads, not on the hidden size.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tests.checkpoints import PREFIX, TINY
from tests.drafters import Change
from tests.test_draft_beyond import Part
from tests.tiny_drafter import make_config, make_tensors, write

HIDDEN, INTERMEDIATE, LAYERS, KERNEL = 128, 224, 4, 4
HEAD, LINEAR_HEAD = 256, 128
CONTEXT = 8192


@dataclass(frozen=True)
class Heads:
    """Heads of a release: queries and keys of full attention, keys and values of linear attention."""

    queries: int
    keys: int
    linear_keys: int
    linear_values: int

    def __str__(self) -> str:
        return f"{self.queries}/{self.keys} linear {self.linear_keys}/{self.linear_values}"


# The dense releases from 0.8B to 27B have these.
RELEASES = (Heads(8, 2, 16, 16), Heads(16, 4, 16, 32), Heads(24, 4, 16, 48))


def write_target(folder: Path, heads: Heads) -> Path:
    """A checkpoint of these heads with weights that are zero."""
    folder.mkdir()
    config = json.loads((TINY / "config.json").read_text())
    config["text_config"] |= _sizes(heads)
    config["text_config"]["rope_parameters"] |= {"mrope_section": [11, 11, 10]}
    for key in [key for key in config if key.startswith(("vision", "image", "video"))]:
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(TINY / "generation_config.json", folder)
    vocab = config["text_config"]["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocab, HIDDEN), "norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer(heads, layer == LAYERS - 1).items()}
    tensors = {PREFIX + name: np.zeros(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}
    tensors["lm_head.weight"] = np.zeros((vocab, HIDDEN), ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _sizes(heads: Heads) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        "num_attention_heads": heads.queries,
        "num_key_value_heads": heads.keys,
        "head_dim": HEAD,
        "linear_num_key_heads": heads.linear_keys,
        "linear_num_value_heads": heads.linear_values,
        "linear_key_head_dim": LINEAR_HEAD,
        "linear_value_head_dim": LINEAR_HEAD,
        "max_position_embeddings": CONTEXT,
        "mtp_num_hidden_layers": 0,
    }


def _layer(heads: Heads, full: bool) -> dict[str, tuple[int, ...]]:
    norms = {f"{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    mlp = {f"mlp.{name}.weight": (INTERMEDIATE, HIDDEN) for name in ("gate_proj", "up_proj")}
    return norms | mlp | {"mlp.down_proj.weight": (HIDDEN, INTERMEDIATE)} | (_attention if full else _linear)(heads)


def _attention(heads: Heads) -> dict[str, tuple[int, ...]]:
    width = heads.queries * HEAD
    return {
        "self_attn.q_proj.weight": (2 * width, HIDDEN),
        "self_attn.k_proj.weight": (heads.keys * HEAD, HIDDEN),
        "self_attn.v_proj.weight": (heads.keys * HEAD, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, width),
        "self_attn.q_norm.weight": (HEAD,),
        "self_attn.k_norm.weight": (HEAD,),
    }


def _linear(heads: Heads) -> dict[str, tuple[int, ...]]:
    values = heads.linear_values * LINEAR_HEAD
    channels = 2 * heads.linear_keys * LINEAR_HEAD + values
    return {
        "linear_attn.in_proj_qkv.weight": (channels, HIDDEN),
        "linear_attn.in_proj_z.weight": (values, HIDDEN),
        "linear_attn.in_proj_b.weight": (heads.linear_values, HIDDEN),
        "linear_attn.in_proj_a.weight": (heads.linear_values, HIDDEN),
        "linear_attn.conv1d.weight": (channels, 1, KERNEL),
        "linear_attn.A_log": (heads.linear_values,),
        "linear_attn.dt_bias": (heads.linear_values,),
        "linear_attn.norm.weight": (LINEAR_HEAD,),
        "linear_attn.out_proj.weight": (HIDDEN, values),
    }


def write_wide_drafter(folder: Path, kind: str, changes: Sequence[Change], parts: Sequence[Part]) -> Path:
    """A drafter with the heads of those that were published: 128 wide, four queries to a key."""
    config = make_config("dflash2" if kind == "dflash2" else "dspark")
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config |= {"num_target_layers": LAYERS, "max_position_embeddings": CONTEXT}
    config["dflash_config"]["target_layer_ids"] = [0, 1, 2]
    for change in changes:
        change(config)
    tensors = make_tensors(config)
    if kind == "dflash":
        config["architectures"] = ["DFlashDraftModel"]
        for name in ("markov_rank", "markov_head_type", "projector_type"):
            del config["dflash_config"][name]
        tensors = {name: tensor for name, tensor in tensors.items() if "markov_head" not in name}
    for part in parts:
        part(config, tensors)
    write(folder, config, tensors)
    return folder
