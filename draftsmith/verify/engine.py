"""Checks in the real runtime: greedy tokens with drafts, without them, and those of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import torch

from draftsmith.validation.engine import EngineRun, run_engine
from draftsmith.verify.alone import without_drafter
from draftsmith.verify.checks import Results
from draftsmith.verify.folder import ExportFolder
from draftsmith.verify.sources import Target
from draftsmith.verify.target import random_ids

COUNT = 24

# A text of each kind that the tiny pair was trained on; other models take them as well as any.
TEXTS = ("Ada found the", "def mended_", '{"name": "')

_TIE = 1e-4  # logits that are no further apart may be chosen either way


def check_runtime(export: ExportFolder, low: Path, target: Target | None, results: Results) -> None:
    """Decode some prompts greedily in the Engine (packed) or the Generator (dense)."""
    prompts = _prompts(export, low)
    if not export.packed:
        tokens = [_generate(low, prompt) for prompt in prompts]
        _against_transformers("Generator", prompts, tokens, target, results)
        return
    run = run_engine(low, prompts, COUNT)
    if export.drafter:
        _check_drafts(run, results)
        alone = run_engine(without_drafter(low, low.with_name("alone")), prompts, COUNT)
        faults = _first_difference(prompts, run.tokens, alone.tokens)
        results.stated("Engine with drafts", f"{_amount(run.tokens)} equal to those without drafts", faults)
    _against_transformers("Engine", prompts, run.tokens, target, results)


def _check_drafts(run: EngineRun, results: Results) -> None:
    proposed, accepted = run.count("draft_tokens_proposed"), run.count("draft_tokens_accepted")
    what = f"{proposed} drafts proposed, {accepted} of them accepted"
    results.stated("drafts", what, [] if proposed else ["the Engine has asked for no drafts"])
    results.figures["engine"] = {"proposed": proposed, "accepted": accepted, "histogram": run.accepted_lengths()}


def _prompts(export: ExportFolder, low: Path) -> list[list[int]]:
    """Texts, where the export has a tokenizer, and ids from anywhere in the vocabulary, beyond a page of 256."""
    vocab = export.config["model"]["vocab_size"]
    texts: list[list[int]] = []
    if (low / "tokenizer.json").is_file():
        tokenizer = og.Tokenizer(og.Model(og.Config(str(low))))
        texts = [tokenizer.encode(text).tolist() for text in TEXTS]
    longest = export.config["model"]["context_length"] - COUNT - 16
    return [*texts, random_ids(vocab, 7, min(270, longest)).tolist(), random_ids(vocab, 8, min(11, longest)).tolist()]


def _generate(low: Path, prompt: list[int]) -> list[int]:
    parameters = og.GeneratorParams(model := og.Model(str(low)))
    parameters.set_search_options(max_length=len(prompt) + COUNT, batch_size=1, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array(prompt, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    tokens: list[int] = generator.get_sequence(0)[len(prompt) :].tolist()
    return tokens


def _against_transformers(
    name: str, prompts: list[list[int]], tokens: list[list[int]], target: Target | None, results: Results
) -> None:
    """Each token must be transformers' likeliest after the ones before it; one pass over a text tells."""
    title = f"{name} and transformers"
    if target is None:
        results.skipped(title, "the target's checkpoint is not given (--target)")
        return
    faults = []
    for prompt, text in zip(prompts, tokens, strict=True):
        with torch.no_grad():
            logits = target.model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
        best = logits.max(dim=-1)
        chosen = logits.gather(1, torch.tensor(text)[:, None])[:, 0] if text else best.values
        wrong = torch.nonzero(best.values - chosen > _TIE)
        if len(wrong):
            at = int(wrong[0])
            faults.append(f"after {len(prompt)} + {at} tokens: {text[at]}, transformers has {int(best.indices[at])}")
        if not text:
            faults.append(f"after {len(prompt)} tokens: nothing")
    results.stated(title, f"{_amount(tokens)} equal to transformers' greedy ones", faults)


def _first_difference(prompts: list[list[int]], first: list[list[int]], second: list[list[int]]) -> list[str]:
    faults = []
    for prompt, a, b in zip(prompts, first, second, strict=True):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            faults.append(f"after {len(prompt)} + {at} tokens: {a[at : at + 3]} with drafts, {b[at : at + 3]} without")
    return faults


def _amount(tokens: list[list[int]]) -> str:
    return f"{sum(map(len, tokens))} tokens of {len(tokens)} prompts"
