"""A tiny drafter for the bundled target, as scripts/make_tiny_drafter.py writes it and tests change it.

Two layers with random weights. No width equals the vocabulary or one that it could be confused with, no norm weight is
1, and the convolutions are far from the identity: each would hide a fault.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

VOCAB, HIDDEN, INTERMEDIATE = 640, 128, 224
HEADS, KV_HEADS, HEAD, LAYERS = 6, 2, 32, 2
RANK = 24
Json = dict[str, Any]
Tensors = dict[str, np.ndarray[Any, Any]]


def make_config(kind: str) -> Json:
    """``config.json`` as the trainers write it."""
    config: Json = {
        "architectures": [{"dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}[kind]],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "is_causal": False,
        "max_position_embeddings": 4096,
        "num_target_layers": 8,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "layer_types": ["full_attention"] * LAYERS,
        "use_sliding_window": False,
        "sliding_window": None,
    }
    drafter: Json = {"target_layer_ids": [1, 3, 5], "mask_token_id": 630, "block_size": 8}
    if kind == "dflash2":
        drafter |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": RANK, "selector_top_k": 4}
    else:
        drafter |= {"projector_type": "dspark", "markov_rank": RANK, "markov_head_type": "vanilla"}
    return config | {"dflash_config": drafter}


def make_tensors(config: Json, seed: int = 5) -> Tensors:
    """The tensors that a configuration calls for, in bf16."""
    rng = np.random.default_rng(seed)
    return {
        name: (mean + scale * rng.standard_normal(shape)).astype(ml_dtypes.bfloat16)
        for name, shape, mean, scale in shapes_of(config)
    }


def shapes_of(config: Json) -> list[tuple[str, tuple[int, ...], float, float]]:
    """Names and shapes of these tensors, with the mean and the deviation of their values."""
    found: list[tuple[str, tuple[int, ...], float, float]] = []

    def add(name: str, *shape: int, mean: float = 0.0, scale: float = 0.06) -> None:
        found.append((name, shape, mean, scale))

    def add_norm(name: str, size: int) -> None:
        add(f"{name}.weight", size, mean=1.0, scale=0.2)

    drafter, hidden = config["dflash_config"], config["hidden_size"]
    heads, kv_heads, head = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    add("fc.weight", hidden, hidden * len(drafter["target_layer_ids"]))
    add_norm("hidden_norm", hidden)
    add_norm("norm", hidden)
    for layer in range(config["num_hidden_layers"]):
        start = f"layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            add_norm(start + name, hidden)
        for name in ("q_norm", "k_norm"):
            add_norm(f"{start}self_attn.{name}", head)
        for name, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
            add(f"{start}self_attn.{name}.weight", count * head, hidden)
        add(f"{start}self_attn.o_proj.weight", hidden, heads * head)
        for name in ("gate_proj", "up_proj"):
            add(f"{start}mlp.{name}.weight", config["intermediate_size"], hidden)
        add(f"{start}mlp.down_proj.weight", hidden, config["intermediate_size"])
        if "conv_kernel_size" in drafter:
            taps, groups = drafter["conv_kernel_size"], hidden // drafter["conv_group_size"]
            for name in ("attention_conv", "mlp_conv"):
                add(f"{start}{name}.base_kernel", 2, taps, hidden, mean=0.5, scale=0.3)
                add(f"{start}{name}.kernel_projection.weight", 2 * taps * groups, hidden, scale=0.03)
    _add_head(config, add)
    return found


def _add_head(config: Json, add: Any) -> None:
    drafter, hidden, vocab = config["dflash_config"], config["hidden_size"], config["vocab_size"]
    if "selector_rank" in drafter:
        rank = drafter["selector_rank"]
        for name in ("predecessor_codebook", "successor_codebook"):
            add(f"candidate_selector.{name}", vocab, rank, scale=0.3)
        add("candidate_selector.hidden_projection.weight", rank, hidden, scale=0.1)
        return
    rank = drafter["markov_rank"]
    for name in ("markov_w1", "markov_w2"):
        add(f"markov_head.{name}.weight", vocab, rank, scale=0.3)
    if drafter.get("markov_head_type") == "gated":
        add("markov_head.gate_proj.weight", rank, hidden + rank, scale=0.1)
        add("markov_head.gate_proj.bias", rank, scale=0.5)
    if drafter.get("enable_confidence_head"):
        width = hidden + (rank if drafter.get("confidence_head_with_markov") else 0)
        add("confidence_head.proj.weight", 1, width)
        add("confidence_head.proj.bias", 1)


def write(folder: Path, config: Json, tensors: Tensors) -> None:
    """Write a drafter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it private
