"""A checkpoint of a real model's shape with meaningless weights, as scripts/make_synthetic_checkpoint.py writes it.

The shape is that of the 4B model: 8.4 GB in bf16, tied, in shards. Memory and time of an export depend on shapes alone,
so that both can be measured without a download. The data repeats one block of small random numbers. Needs numpy only.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

HIDDEN, INTERMEDIATE, VOCAB = 2560, 9216, 248320
HEADS, KV_HEADS, HEAD_DIM = 16, 4, 256
KEY_HEADS, VALUE_HEADS, LINEAR_DIM, KERNEL = 16, 32, 128, 4
PREFIX = "model.language_model."
SHARD_BYTES = 2_000_000_000
BLOCK = 1 << 24  # bytes of the block that is repeated


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape by name."""
    result: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCAB, HIDDEN), "norm.weight": (HIDDEN,)}
    for layer in range(layers):
        mixer = attention() if layer % 4 == 3 else delta_net()
        parts = mixer | {
            "input_layernorm.weight": (HIDDEN,),
            "post_attention_layernorm.weight": (HIDDEN,),
            "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
        result |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    return {PREFIX + name: shape for name, shape in result.items()}


def attention() -> dict[str, tuple[int, ...]]:
    """A full-attention layer's mixer."""
    return {
        "self_attn.q_proj.weight": (2 * HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "self_attn.q_norm.weight": (HEAD_DIM,),
        "self_attn.k_norm.weight": (HEAD_DIM,),
    }


def delta_net() -> dict[str, tuple[int, ...]]:
    """A linear-attention layer's mixer."""
    channels = (2 * KEY_HEADS + VALUE_HEADS) * LINEAR_DIM
    return {
        "linear_attn.in_proj_qkv.weight": (channels, HIDDEN),
        "linear_attn.in_proj_z.weight": (VALUE_HEADS * LINEAR_DIM, HIDDEN),
        "linear_attn.in_proj_b.weight": (VALUE_HEADS, HIDDEN),
        "linear_attn.in_proj_a.weight": (VALUE_HEADS, HIDDEN),
        "linear_attn.conv1d.weight": (channels, 1, KERNEL),
        "linear_attn.A_log": (VALUE_HEADS,),
        "linear_attn.dt_bias": (VALUE_HEADS,),
        "linear_attn.norm.weight": (LINEAR_DIM,),
        "linear_attn.out_proj.weight": (HIDDEN, VALUE_HEADS * LINEAR_DIM),
    }


def config(layers: int, tied: bool = True) -> dict[str, object]:
    """``config.json``."""
    text = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_conv_kernel_dim": KERNEL,
        "max_position_embeddings": 262144,
        "eos_token_id": 248044,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": tied,
        "text_config": text,
    }


def random_block() -> bytes:
    """Normal numbers of deviation 0.02 in bf16, by cutting float32 to its upper half."""
    numbers = np.random.default_rng(0).standard_normal(BLOCK // 2, dtype=np.float32) * np.float32(0.02)
    return (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()


def write_shard(path: Path, tensors: dict[str, tuple[int, ...]], block: bytes) -> None:
    """One safetensors file."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        end = offset + size_of(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, offset, BLOCK):
            file.write(block[: min(BLOCK, offset - start)])


def size_of(shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in bf16."""
    return 2 * int(np.prod(shape, dtype=np.int64))


def write_headers(folder: Path, layers: int) -> Path:
    """A target of a real model's shape whose file has a header and a hole."""
    folder.mkdir(parents=True)
    header: dict[str, object] = {}
    offset = 0
    for name, shape in shapes(layers).items():
        end = offset + size_of(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    (folder / "config.json").write_text(json.dumps(config(layers)))
    return folder


def write(folder: Path, layers: int, tied: bool = True) -> int:
    """Write the checkpoint in shards; gives the bytes of its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    tensors = shapes(layers) | ({} if tied else {"lm_head.weight": (VOCAB, HIDDEN)})
    for name, shape in tensors.items():
        if shards[-1] and sum(map(size_of, shards[-1].values())) + size_of(shape) > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = shape
    weight_map: dict[str, str] = {}
    block = random_block()
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / file_name, shard, block)
        weight_map |= dict.fromkeys(shard, file_name)
    total = sum(map(size_of, tensors.values()))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / "config.json").write_text(json.dumps(config(layers, tied), indent=1))
    return total
