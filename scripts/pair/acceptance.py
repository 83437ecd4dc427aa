"""How many drafts the target accepts, by the reference of the drafters and not by the code that trained them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafters.checkpoint.reading import read_drafter
from draftsmith.validation.drafter_reference import ReferenceDrafter, Request, draft, extend, load_drafter
from draftsmith.validation.reference import load_reference, operator_epsilon
from genai_config.runtime import ENGINE_DRAFTS as DRAFTS
from onnxkit.weights.checkpoint import Checkpoint
from scripts.pair.continuations import greedy_with_cache, taps_of


def load_pair(target: Path, folder: Path) -> tuple[Any, ReferenceDrafter]:
    """The target and a drafter as a bf16 export holds them."""
    model = load_reference(target, torch.bfloat16)
    tables = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    return model, load_drafter(folder, read_drafter(Checkpoint(folder)), *tables)


def simulate(drafter: ReferenceDrafter, text: Tensor, taps: Tensor, prompt: int, count: int, cut: bool) -> list[int]:
    """The accepted length of each round while the target says ``count`` tokens after a prompt.

    The first token comes without a draft; each round says its accepted drafts and one token of the target.

    Args:
        drafter: The drafter.
        text: Prompt and greedy continuation, which is ``DRAFTS`` tokens longer than ``count``.
        taps: The hidden states of ``text`` that the drafter reads, ``[length, taps * hidden]``.
        prompt: The prompt's length.
        count: How many tokens are said.
        cut: Whether a round near the end has no more drafts than can still be said, as in the runtime.
    """
    request, lengths = Request(), []
    anchor, last = prompt, prompt + count - 1
    while anchor < last:
        room = min(DRAFTS, last - anchor - 1) if cut else DRAFTS
        if room == 0:
            break  # the runtime says the last token without a proposal
        extend(drafter, request, taps[request.length : anchor])
        drafts = draft(drafter, request, int(text[anchor])).path()[:room]
        length = 0
        while length < len(drafts) and drafts[length] == text[anchor + 1 + length]:
            length += 1
        lengths.append(length)
        anchor += length + 1
    return lengths


def accepted_lengths(target: Path, folder: Path, prompts: list[list[int]], count: int, cut: bool = False) -> list[int]:
    """The accepted length of every round, while the target says ``count`` tokens after each prompt."""
    model, drafter = load_pair(target, folder)
    lengths = []
    with operator_epsilon(), torch.no_grad():
        for prompt in prompts:
            text = greedy_with_cache(model, torch.tensor([prompt]), count + DRAFTS)
            taps = taps_of(model, text, drafter.config.taps)
            lengths += simulate(drafter, text[0], taps[0], len(prompt), count, cut)
    return lengths
