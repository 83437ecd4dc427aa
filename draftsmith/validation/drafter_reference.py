"""Block drafters in plain PyTorch, float32: what an exported drafter is compared with.

Written from the published math alone, request by request and layer by layer, without the modules that make the graph:

- DFlash (Chen et al., 2026, https://arxiv.org/abs/2602.06036): context rows ``c = norm(fc(taps))`` give keys and values
  to every layer; a block ``[anchor, mask, mask, ...]`` attends to the context and to itself.
- DFlash 2 adds, around attention and the feed-forward part, ``y[t] = sum_tap (base[tap] + delta[t, tap]) x[t - tap]``
  within the block, and scores a pair of neighbouring candidates by ``<A[previous] * (P h), B[current]>``.
- DSpark scores it by ``<W1[previous], W2[current]>``; a gated head multiplies ``W1[previous]`` by
  ``sigmoid(gate([h; W1[previous]]))``.
- A plain DFlash drafter scores no pairs: each row proposes its own best tokens.
- A head with a sink has one more logit in its softmax, which has no value.
- A head over part of the vocabulary gives rows; ``row + d2t[row]`` is the target's id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import silu
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from drafters.checkpoint.config import DFlash, DFlash2, DrafterConfig, DSpark, LayerAttention
from drafters.checkpoint.names import common_names
from onnxkit.rotary import Rotary

Tensor = torch.Tensor


@dataclass(frozen=True)
class ReferenceDrafter:
    """A drafter with the tables of its target.

    Attributes:
        config: Its configuration.
        weights: Its tensors by their published names, float32 (or 16 bits: see :func:`rounding`).
        embedding: The embedding, ``[vocab, hidden]``.
        head: The LM head, ``[vocab, hidden]``; fewer rows if the vocabulary is part of the target's.
        tables: The type that cosines and sines are rounded to, as the graph's tables are.
        mask_row: What replaces the mask token's row, ``[hidden]`` float32.
    """

    config: DrafterConfig
    weights: dict[str, Tensor]
    embedding: Tensor
    head: Tensor
    tables: torch.dtype = torch.bfloat16
    mask_row: Tensor | None = None


@dataclass
class Request:
    """One request's context: its positions, and each layer's keys (rotated) and values, ``[positions, kv, head]``."""

    length: int = 0
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Lattice:
    """What a block proposes: ``ids`` ``[drafts, top k]`` and ``scores`` ``[drafts, previous, current]``."""

    ids: Tensor
    scores: Tensor

    def path(self) -> list[int]:
        """The drafts, each the best continuation of the one before it."""
        previous, tokens = 0, []
        for ids, scores in zip(self.ids, self.scores, strict=True):
            previous = int(scores[previous].argmax())
            tokens.append(int(ids[previous]))
        return tokens


def load_drafter(
    folder: Path, config: DrafterConfig, embedding: Tensor, head: Tensor, tables: torch.dtype = torch.bfloat16
) -> ReferenceDrafter:
    """A drafter's weights from its folder, as an export rounds them: to bfloat16, but a gate's stay as they are."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    weights = {}
    for stored, name in common_names(list(tensors)).items():
        tensor = tensors[stored]
        if not tensor.is_floating_point():
            weights[name] = tensor
            continue
        rounded = tensor if "gate_proj" in name and ".mlp." not in name else tensor.to(torch.bfloat16)
        weights[name] = rounded.to(torch.float32)
    if config.own_embedding:
        embedding = weights["embed_tokens.weight"]
    if config.own_head:
        head = weights["lm_head.weight"]
    return ReferenceDrafter(
        config, weights, embedding.to(torch.float32), head.to(torch.float32), tables, _mask_row(folder)
    )


def _mask_row(folder: Path) -> Tensor | None:
    """The mask token's own row, as torch itself reads the file."""
    path = folder / "mask_embedding.pt"
    if not path.exists():
        return None
    found = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(found, dict):
        found = next(value for value in found.values() if isinstance(value, torch.Tensor) and value.numel() > 1)
    return found.to(torch.float32).reshape(-1)


def rounding(drafter: ReferenceDrafter, dtype: torch.dtype) -> ReferenceDrafter:
    """The same drafter computing in a type of 16 bits: every result is rounded to it, but norms, softmax and rotary
    embedding are float32 inside. Its distance from the float32 one is what that type costs.
    """
    weights = {n: t.to(dtype) if t.is_floating_point() else t for n, t in drafter.weights.items()}
    return replace(drafter, weights=weights, embedding=drafter.embedding.to(dtype), head=drafter.head.to(dtype))


def extend(drafter: ReferenceDrafter, request: Request, taps: Tensor) -> None:
    """Commit tokens to a request's context, given the target's hidden states for them, ``[new, taps * hidden]``."""
    context = _norm(drafter, "hidden_norm", taps.to(drafter.head.dtype) @ drafter.weights["fc.weight"].T)
    positions = torch.arange(request.length, request.length + len(taps))
    for layer in range(len(drafter.config.layers)):
        key, value = _keys_and_values(drafter, layer, context, positions)
        if layer == len(request.keys):
            request.keys.append(key)
            request.values.append(value)
        else:
            request.keys[layer] = torch.cat([request.keys[layer], key])
            request.values[layer] = torch.cat([request.values[layer], value])
    request.length += len(taps)


def draft(drafter: ReferenceDrafter, request: Request, anchor: int) -> Lattice:
    """Propose a block after a request's context. Nothing of the block stays in the context."""
    hidden = drafted_hidden(drafter, request, anchor)
    return scored(drafter, hidden, anchor, candidates(drafter, hidden))


def drafted_hidden(drafter: ReferenceDrafter, request: Request, anchor: int) -> Tensor:
    """The rows of a block that predict, ``[drafts, hidden]``."""
    hidden = block_hidden(drafter, request, anchor)
    return hidden if drafter.config.anchor_predicts else hidden[1:]


def all_logits(drafter: ReferenceDrafter, hidden: Tensor) -> Tensor:
    """The head's logits by the target's ids, ``[drafts, vocab]``; minus infinity where the head has no such token."""
    logits = hidden @ drafter.head.T
    if "d2t" not in drafter.weights:
        return logits
    whole = torch.full((len(logits), drafter.config.vocab_size), -torch.inf, dtype=logits.dtype)
    whole[:, torch.arange(logits.shape[-1]) + drafter.weights["d2t"]] = logits
    return whole


def candidates(drafter: ReferenceDrafter, hidden: Tensor) -> Tensor:
    """The likeliest tokens of each row, ``[drafts, top k]``."""
    rows = (hidden @ drafter.head.T).topk(drafter.config.top_k, dim=-1).indices
    return rows + drafter.weights["d2t"][rows] if "d2t" in drafter.weights else rows


def scored(drafter: ReferenceDrafter, hidden: Tensor, anchor: int, ids: Tensor) -> Lattice:
    """Candidates ``[drafts, top k]`` with the scores of each pair of neighbours."""
    config = drafter.config
    unary = all_logits(drafter, hidden).gather(1, ids)
    previous = torch.cat([torch.full((1, config.top_k), anchor), ids[:-1]])
    if isinstance(config.variant, DFlash | DFlash2):
        if config.variant.output_multiplier is not None:
            unary = unary * config.variant.output_multiplier
        cap = config.variant.final_logit_softcapping
        if cap is not None:
            unary = cap * torch.tanh(unary / cap)
    pairs = torch.zeros(len(ids), config.top_k, config.top_k)
    if isinstance(config.variant, DFlash2):
        pairs = _selector(drafter, hidden, previous, ids)
    elif isinstance(config.variant, DSpark) and config.variant.markov_rank:
        pairs = _markov(drafter, config.variant, hidden, previous, _head_rows(drafter, ids))
    return Lattice(ids, (unary[:, None, :] + pairs).to(torch.float32))


def _head_rows(drafter: ReferenceDrafter, ids: Tensor) -> Tensor:
    """The rows of the head that stand for some of the target's ids."""
    if "d2t" not in drafter.weights:
        return ids
    shift = drafter.weights["d2t"]
    rows = torch.zeros(drafter.config.vocab_size, dtype=torch.int64)
    rows[torch.arange(len(shift)) + shift] = torch.arange(len(shift))
    return rows[ids]


def block_hidden(drafter: ReferenceDrafter, request: Request, anchor: int) -> Tensor:
    """The final norm's output of every row of a block, ``[block, hidden]``."""
    config, weights = drafter.config, drafter.weights
    tokens = torch.full((config.block_size,), config.mask_token_id)
    tokens[0] = anchor
    x = drafter.embedding[tokens]
    if drafter.mask_row is not None:
        x[tokens == config.mask_token_id] = drafter.mask_row
    x = x * (config.input_embedding_scale or 1.0)
    for layer, attention in enumerate(config.layers):
        start = f"layers.{layer}."
        u = _norm(drafter, f"{start}input_layernorm", x)
        y = _attention(drafter, layer, attention, request, _before(drafter, f"{start}attention_conv", u, u))
        x = x + _after(drafter, f"{start}attention_conv", u, y)
        u = _norm(drafter, f"{start}post_attention_layernorm", x)
        v = _before(drafter, f"{start}mlp_conv", u, u)
        gate, up = (v @ weights[f"{start}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + _after(drafter, f"{start}mlp_conv", u, (silu(gate) * up) @ weights[f"{start}mlp.down_proj.weight"].T)
    return _norm(drafter, "norm", x)


def _norm(drafter: ReferenceDrafter, name: str, x: Tensor) -> Tensor:
    exact = x.to(torch.float32)
    variance = exact.pow(2).mean(-1, keepdim=True)
    y = exact * torch.rsqrt(variance + drafter.config.rms_norm_eps) * drafter.weights[f"{name}.weight"]
    return y.to(x.dtype)


def _attention(drafter: ReferenceDrafter, layer: int, attention: LayerAttention, request: Request, x: Tensor) -> Tensor:
    config, block = drafter.config, len(x)
    position = torch.arange(request.length, request.length + block)
    start = f"layers.{layer}.self_attn"
    query = _projected(drafter, f"{start}.q_proj", x).reshape(block, -1, config.head_dim)
    query = _rotated(drafter, _norm(drafter, f"{start}.q_norm", query), position)
    key, value = _keys_and_values(drafter, layer, x, position)
    keys, values = torch.cat([request.keys[layer], key]), torch.cat([request.values[layer], value])
    group = config.num_attention_heads // config.num_key_value_heads
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) / config.head_dim**0.5
    cached = torch.arange(request.length + block)
    hidden = torch.zeros(block, len(cached), dtype=torch.bool)
    if attention.causal:
        hidden |= cached[None] > position[:, None]
    if attention.window is not None:
        hidden |= cached[None] <= position[:, None] - attention.window
    scores = scores.masked_fill(hidden, -torch.inf)
    if config.attention_sinks:
        sink = drafter.weights[f"{start}.attention_sink_bias"][:, None, None].expand(-1, block, 1)
        scores = torch.cat([scores, sink], dim=-1)
    probabilities = scores.softmax(-1, dtype=torch.float32)[..., : len(cached)].to(x.dtype)
    y = torch.einsum("hqk,khd->qhd", probabilities, values)
    return _projected(drafter, f"{start}.o_proj", y.reshape(block, -1))


def _projected(drafter: ReferenceDrafter, name: str, x: Tensor) -> Tensor:
    y = x @ drafter.weights[f"{name}.weight"].T
    return y + drafter.weights[f"{name}.bias"] if drafter.config.attention_bias else y


def _keys_and_values(drafter: ReferenceDrafter, layer: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    start = f"layers.{layer}.self_attn"
    key, value = (
        _projected(drafter, f"{start}.{name}_proj", x).reshape(len(x), -1, drafter.config.head_dim)
        for name in ("k", "v")
    )
    return _rotated(drafter, _norm(drafter, f"{start}.k_norm", key), positions), value


def _rotated(drafter: ReferenceDrafter, x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding over whole heads, one half against the other (Su et al., RoFormer, 2021)."""
    frequencies, factor = _frequencies(drafter.config.rotary)
    angles = positions[:, None].to(torch.float32) * frequencies
    cos, sin = ((t * factor).to(drafter.tables).to(torch.float32)[:, None] for t in (angles.cos(), angles.sin()))
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def _frequencies(rotary: Rotary) -> tuple[Tensor, float]:
    """Frequencies and attention factor. Stretched ones are transformers' own."""
    if rotary.yarn is None:
        return 1.0 / rotary.theta ** (torch.arange(0, rotary.dim, 2).to(torch.float32) / rotary.dim), 1.0
    yarn = rotary.yarn
    parameters = {
        "rope_type": "yarn",
        "rope_theta": rotary.theta,
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_length,
        "attention_factor": yarn.attention_factor,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "truncate": yarn.truncate,
    }
    config = Qwen3Config(rope_parameters=parameters, head_dim=rotary.dim, max_position_embeddings=yarn.length)
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    return frequencies, factor


def _before(drafter: ReferenceDrafter, name: str, u: Tensor, x: Tensor) -> Tensor:
    return convolved(drafter, name, 0, u, x)


def _after(drafter: ReferenceDrafter, name: str, u: Tensor, y: Tensor) -> Tensor:
    return convolved(drafter, name, 1, u, y)


def convolved(drafter: ReferenceDrafter, name: str, side: int, u: Tensor, x: Tensor) -> Tensor:
    """DFlash 2's convolution of one block, ``[block, hidden]``. Its coefficients come from ``u`` on both sides."""
    variant = drafter.config.variant
    if not isinstance(variant, DFlash2):
        return x
    block = len(x)
    base = drafter.weights[f"{name}.base_kernel"][side]
    delta = (u @ drafter.weights[f"{name}.kernel_projection.weight"].T).reshape(block, 2, variant.conv_kernel_size, -1)
    y = torch.zeros_like(x)
    for row in range(block):
        for offset in range(min(variant.conv_kernel_size, row + 1)):
            coefficient = base[offset] + delta[row, side, offset].repeat_interleave(variant.conv_group_size)
            y[row] += coefficient * x[row - offset]
    return y


def _selector(drafter: ReferenceDrafter, hidden: Tensor, previous: Tensor, ids: Tensor) -> Tensor:
    name = "candidate_selector"
    predecessors, successors = (drafter.weights[f"{name}.{side}_codebook"] for side in ("predecessor", "successor"))
    gate = hidden @ drafter.weights[f"{name}.hidden_projection.weight"].T
    return torch.einsum("lpr,lr,lcr->lpc", predecessors[previous], gate, successors[ids])


def _markov(drafter: ReferenceDrafter, variant: DSpark, hidden: Tensor, previous: Tensor, rows: Tensor) -> Tensor:
    first, second = (drafter.weights[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
    embedded = first[previous]
    if variant.gated:
        both = torch.cat([hidden[:, None].expand(-1, rows.shape[1], -1), embedded], dim=-1)
        weight, bias = (drafter.weights[f"markov_head.gate_proj.{part}"] for part in ("weight", "bias"))
        embedded = torch.sigmoid(both @ weight.T + bias) * embedded
    return torch.einsum("lpr,lcr->lpc", embedded, second[rows])
