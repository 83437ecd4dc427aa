"""What the target says: its greedy continuations of prompts, with the hidden states that a drafter reads."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from draftsmith.validation.reference import entering_streams, operator_epsilon
from scripts.pair.text import World, windows

BATCH = 256
PROMPT_LENGTHS = range(12, 60)


@dataclass(frozen=True)
class Continuations:
    """Prompts with what the target goes on with.

    Attributes:
        tokens: ``[texts, length]``.
        prompt_lengths: How many tokens of each text are its prompt, ``[texts]``.
        taps: The target's hidden states side by side, ``[texts, length, taps * hidden]``.
    """

    tokens: Tensor
    prompt_lengths: Tensor
    taps: Tensor


def greedy_with_cache(model: Any, prompts: Tensor, count: int) -> Tensor:
    """``[texts, prompt + count]``: prompts of one length, each with its greedy continuation."""
    pieces, cache, ids = [prompts], None, prompts
    with torch.no_grad():
        for _ in range(count):
            out = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            cache, ids = out.cache, out.logits[:, -1:].argmax(-1)
            pieces.append(ids)
    return torch.cat(pieces, dim=1)


def taps_of(model: Any, tokens: Tensor, taps: tuple[int, ...]) -> Tensor:
    """The residual streams that enter some layers, side by side: ``[texts, length, taps * hidden]``."""
    streams = entering_streams(model, tokens)
    return torch.cat([streams[tap] for tap in taps], dim=-1)


def continuations(
    model: Any, world: World, tokenizer: Tokenizer, rng: random.Random, count: int, length: int, taps: tuple[int, ...]
) -> Continuations:
    """Let the target go on with the beginnings of ``count`` new documents, to ``length`` tokens each."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with operator_epsilon():
        for first in range(0, count, BATCH):
            size, prompt = min(BATCH, count - first), rng.choice(PROMPT_LENGTHS)
            prompts = torch.tensor(windows(world, tokenizer, rng, size, prompt))
            tokens = greedy_with_cache(model, prompts, length - prompt)
            streams = torch.cat([taps_of(model, part, taps) for part in torch.split(tokens, 32)])
            parts.append((tokens, torch.full((size,), prompt), streams))
    return Continuations(*(torch.cat(column) for column in zip(*parts, strict=True)))
