"""Both drafters as trainable modules: many blocks of many texts in one pass. Modules are named as the tensors are.

The math is that of ``draftsmith/validation/drafter_reference.py``, which goes block by block; training asserts that the
two agree.

Shapes: B texts of L tokens, K blocks of each, N rows of a block, T taps of hidden size D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from drafters.checkpoint.config import DFlash2, DrafterConfig, DSpark


@dataclass(frozen=True)
class Blocks:
    """Where blocks stand.

    Attributes:
        anchors: Each block's position, ``[B, K]``: its context is what stands before.
        tokens: The token at each anchor, ``[B, K]``.
    """

    anchors: Tensor
    tokens: Tensor


class Norm(nn.Module):
    """Root mean square norm whose weight is stored as it is applied."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Bring the last axis to length."""
        return rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class Convolution(nn.Module):
    """DFlash 2's convolution within a block, before and after a part; it begins as the identity."""

    def __init__(self, hidden: int, variant: DFlash2) -> None:
        super().__init__()
        self.kernel, self.group = variant.conv_kernel_size, variant.conv_group_size
        base = torch.zeros(2, self.kernel, hidden)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(hidden, 2 * self.kernel * (hidden // self.group), bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def forward(self, side: int, u: Tensor, x: Tensor) -> Tensor:
        """Mix each row of ``x [B, K, N, D]`` with those before it, by coefficients that come from ``u``."""
        delta = self.kernel_projection(u).unflatten(-1, (2, self.kernel, -1))[..., side, :, :]
        y = torch.zeros_like(x)
        for offset in range(self.kernel):
            coefficient = self.base_kernel[side, offset] + delta[..., offset, :].repeat_interleave(self.group, dim=-1)
            shifted = torch.roll(x, offset, dims=2)
            shifted[:, :, :offset] = 0
            y = y + coefficient * shifted
        return y


class Attention(nn.Module):
    """Rows of a block attend to the context before the anchor and to the whole block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)
        self.q_norm = Norm(self.size, config.rms_norm_eps)
        self.k_norm = Norm(self.size, config.rms_norm_eps)
        exponents = torch.arange(0, self.size, 2).to(torch.float32) / self.size
        self.register_buffer("frequencies", 1.0 / config.rotary.theta**exponents, persistent=False)
        self.frequencies: Tensor

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """Attend from ``x [B, K, N, D]``; the context is ``[B, L, D]``."""
        length, rows = context.shape[1], x.shape[2]
        positions = anchors[..., None] + torch.arange(rows)
        query = self._rotated(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.size))), positions)
        key, value = self._keys_and_values(x, positions)
        old_key, old_value = self._keys_and_values(context, torch.arange(length))
        scale = self.size**-0.5
        old = torch.einsum("bknhd,bchd->bknhc", query, old_key) * scale
        unseen = torch.arange(length) >= anchors[..., None]
        old = old.masked_fill(unseen[:, :, None, None], -torch.inf)
        new = torch.einsum("bknhd,bkmhd->bknhm", query, key) * scale
        weights = torch.cat([old, new], dim=-1).softmax(-1)
        y = torch.einsum("bknhc,bchd->bknhd", weights[..., :length], old_value)
        y = y + torch.einsum("bknhm,bkmhd->bknhd", weights[..., length:], value)
        return self.o_proj(y.flatten(-2))

    def _keys_and_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        key, value = (layer(x).unflatten(-1, (self.kv_heads, self.size)) for layer in (self.k_proj, self.v_proj))
        key, group = self._rotated(self.k_norm(key), positions), self.heads // self.kv_heads
        return key.repeat_interleave(group, dim=-2), value.repeat_interleave(group, dim=-2)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding over whole heads, with the tables of a bf16 export."""
        angles = positions[..., None, None].to(torch.float32) * self.frequencies
        cos, sin = (table.to(torch.bfloat16).to(torch.float32) for table in (angles.cos(), angles.sin()))
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class FeedForward(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to each row."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward part, with convolutions around each in a DFlash 2 drafter."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.attention_conv = self.mlp_conv = None
        if isinstance(config.variant, DFlash2):
            self.attention_conv = Convolution(config.hidden_size, config.variant)
            self.mlp_conv = Convolution(config.hidden_size, config.variant)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """The stream after the layer, ``[B, K, N, D]``."""
        u = self.input_layernorm(x)
        if self.attention_conv is None or self.mlp_conv is None:
            x = x + self.self_attn(u, context, anchors)
            return x + self.mlp(self.post_attention_layernorm(x))
        y = self.self_attn(self.attention_conv(0, u, u), context, anchors)
        x = x + self.attention_conv(1, u, y)
        u = self.post_attention_layernorm(x)
        return x + self.mlp_conv(1, u, self.mlp(self.mlp_conv(0, u, u)))


class CandidateSelector(nn.Module):
    """DFlash 2: the score of a pair of neighbours, by what the row says of them."""

    def __init__(self, config: DrafterConfig, variant: DFlash2) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(0.3 * torch.randn(config.vocab_size, variant.selector_rank))
        self.successor_codebook = nn.Parameter(0.05 * torch.randn(config.vocab_size, variant.selector_rank))
        self.hidden_projection = nn.Linear(config.hidden_size, variant.selector_rank, bias=False)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Every token's score after ``previous [B, K, R]``: ``[B, K, R, vocab]``."""
        return linear(self.predecessor_codebook[previous] * self.hidden_projection(hidden), self.successor_codebook)


class MarkovHead(nn.Module):
    """DSpark, vanilla: the score of a pair of neighbours, whatever the row."""

    def __init__(self, config: DrafterConfig, variant: DSpark) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, variant.markov_rank)
        self.markov_w2 = nn.Linear(variant.markov_rank, config.vocab_size, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.3)
        nn.init.normal_(self.markov_w2.weight, std=0.05)

    def forward(self, previous: Tensor) -> Tensor:
        """Every token's score after ``previous [B, K, R]``: ``[B, K, R, vocab]``."""
        return self.markov_w2(self.markov_w1(previous))


class TrainableDrafter(nn.Module):
    """A drafter beside the frozen tables of its target. Its ``state_dict`` holds the published names."""

    def __init__(self, config: DrafterConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.hidden_size * len(config.target_layer_ids), config.hidden_size, bias=False)
        self.hidden_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in config.layers)
        if isinstance(config.variant, DFlash2):
            self.candidate_selector = CandidateSelector(config, config.variant)
        elif isinstance(config.variant, DSpark):
            self.markov_head = MarkovHead(config, config.variant)
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)
        self.embedding: Tensor
        self.head: Tensor

    def forward(self, taps: Tensor, blocks: Blocks) -> Tensor:
        """The hidden state of every drafting row ``[B, K, R, D]``, after the final norm. Taps are ``[B, L, T D]``."""
        context = self.hidden_norm(self.fc(taps))
        masks = torch.full((*blocks.tokens.shape, self.config.block_size - 1), self.config.mask_token_id)
        x = self.embedding[torch.cat([blocks.tokens[..., None], masks], dim=-1)]
        for layer in self.layers:
            x = layer(x, context, blocks.anchors)
        hidden: Tensor = self.norm(x)
        return hidden[:, :, 1:] if isinstance(self.config.variant, DFlash2) else hidden

    def scores(self, hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Every token's score by a row alone, and after the token before it: ``[B, K, R, vocab]`` each."""
        alone = linear(hidden, self.head)
        if isinstance(self.config.variant, DFlash2):
            return alone, alone + self.candidate_selector(hidden, previous)
        return alone, alone + self.markov_head(previous)
