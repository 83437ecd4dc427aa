"""Checks in the real runtime: greedy tokens with drafts, without them, and from transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import torch

from draftsmith.validation.engine import EngineRun, run_engine
from draftsmith.verify.alone import without_drafter
from draftsmith.verify.checks import Results
from draftsmith.verify.folder import ExportFolder
from draftsmith.verify.running import Running
from draftsmith.verify.sources import Target
from draftsmith.verify.target import random_ids, relative

COUNT = 24

# A text of each kind that the tiny pair was trained on; for other models they are as good as any.
TEXTS = ("Ada found the", "def mended_", '{"name": "')


def check_runtime(export: ExportFolder, running: Running, target: Target | None, results: Results) -> None:
    """Decode some prompts greedily in the Engine (packed) or the Generator (dense)."""
    name = "Engine" if export.packed else "Generator"
    count = min(COUNT, export.context // 2)
    if count == 0:
        results.incomplete(name, f"not run: a context of {export.context} has no room for a prompt and a token")
        return
    prompts = _prompts(export, running.folder, export.context - count)
    if not export.packed:
        tokens = [_generate(running.folder, prompt, count) for prompt in prompts]
        _against_transformers(name, prompts, tokens, target, running, results)
        return
    run = run_engine(running.folder, prompts, count)
    if export.drafter:
        _check_drafts(run, count, results)
        alone = run_engine(without_drafter(running.folder, running.work / "alone"), prompts, count)
        _against_alone(prompts, run.tokens, alone.tokens, target, running, results)
    _against_transformers(name, prompts, run.tokens, target, running, results)


def _check_drafts(run: EngineRun, count: int, results: Results) -> None:
    """Check that the Engine asked for drafts. The prompt gives the first of ``count`` tokens; the last needs none."""
    proposed, accepted = run.count("draft_tokens_proposed"), run.count("draft_tokens_accepted")
    if not proposed and count < 3:
        results.incomplete("drafts", f"none proposed: the context has room for only {count} tokens after a prompt")
    else:
        what = f"{proposed} drafts proposed, {accepted} of them accepted" if proposed else "drafts that are proposed"
        results.stated("drafts", what, [] if proposed else ["the Engine asked for no drafts"])
    results.figures["engine"] = {"proposed": proposed, "accepted": accepted, "histogram": run.accepted_lengths()}


def _prompts(export: ExportFolder, folder: Path, longest: int) -> list[list[int]]:
    """Texts, if the export has a tokenizer, and random ids from the whole vocabulary, longer than a page of 256."""
    vocab = export.config["model"]["vocab_size"]
    texts: list[list[int]] = []
    if (folder / "tokenizer.json").is_file():
        tokenizer = og.Tokenizer(og.Model(og.Config(str(folder))))
        texts = [tokenizer.encode(text).tolist()[:longest] for text in TEXTS]
    return [*texts, *(random_ids(vocab, seed, min(length, longest)).tolist() for seed, length in ((7, 270), (8, 11)))]


def _generate(low: Path, prompt: list[int], count: int) -> list[int]:
    parameters = og.GeneratorParams(model := og.Model(str(low)))
    parameters.set_search_options(max_length=len(prompt) + count, batch_size=1, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array(prompt, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    tokens: list[int] = generator.get_sequence(0)[len(prompt) :].tolist()
    return tokens


def _against_transformers(
    name: str,
    prompts: list[list[int]],
    tokens: list[list[int]],
    target: Target | None,
    running: Running,
    results: Results,
) -> None:
    """Each token must be transformers' likeliest after the ones before it; one pass over a text shows it."""
    title = f"{name} and transformers"
    if target is None:
        results.incomplete(title, "not compared: the target's checkpoint is not given (--target)")
        return
    faults = []
    for prompt, text in zip(prompts, tokens, strict=True):
        logits, tie = _after(target, prompt, text, running)
        best = logits.max(dim=-1)
        chosen = logits.gather(1, torch.tensor(text)[:, None])[:, 0] if text else best.values
        wrong = torch.nonzero(~(best.values - chosen <= tie))
        if len(wrong):
            at = int(wrong[0])
            faults.append(f"after {len(prompt)} + {at} tokens: {text[at]}, transformers has {int(best.indices[at])}")
        if not text:
            faults.append(f"after {len(prompt)} tokens: nothing")
    what = "as good as" if running.rounds else "equal to"
    results.stated(title, f"{_amount(tokens)} {what} transformers' greedy ones", faults, sum(map(len, tokens)))


def _after(target: Target, prompt: list[int], text: list[int], running: Running) -> tuple[torch.Tensor, float]:
    """transformers' logits before each token of a text, and how close two must be for either to count."""
    ids = torch.tensor([prompt + text])
    with torch.no_grad():
        logits = target.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        if not running.rounds or not text:
            return logits, running.tie
        own = target.rounding(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    limit = running.allows(relative(own.numpy(), logits.numpy()))
    return logits, 2 * limit * max(1.0, float(logits.abs().max()))  # the logits of both tokens may be off


def _against_alone(
    prompts: list[list[int]],
    drafted: list[list[int]],
    alone: list[list[int]],
    target: Target | None,
    running: Running,
    results: Results,
) -> None:
    """Tokens with drafts equal those without. In 16 bits they may diverge where either is as good: kernels differ."""
    title, what = "Engine with drafts", f"{_amount(drafted)} equal to those without drafts"
    faults, parted = [], 0
    for prompt, a, b in zip(prompts, drafted, alone, strict=True):
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        if running.rounds and target is not None and at < min(len(a), len(b)):
            logits, tie = _after(target, prompt, a[: at + 1], running)
            if max(logits[at].max() - logits[at, token] for token in (a[at], b[at])) <= tie:
                parted += 1
                continue
        faults.append(f"after {len(prompt)} + {at} tokens: {a[at : at + 3]} with drafts, {b[at : at + 3]} without")
    what += f", or as good where they diverge ({parted} texts)" if parted else ""
    if faults and running.rounds and target is None:
        results.incomplete(title, "not equal, perhaps because of rounding; --target would tell\n" + "\n".join(faults))
    else:
        results.stated(title, what, faults, sum(map(len, drafted)))


def _amount(tokens: list[list[int]]) -> str:
    return f"{sum(map(len, tokens))} tokens of {len(tokens)} prompts"
