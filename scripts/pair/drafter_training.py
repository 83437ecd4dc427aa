"""Training a drafter on what the target says, and the proof that the training code is the published math."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.reading import read_drafter
from draftsmith.validation.drafter_reference import Request, block_hidden, draft, extend, load_drafter
from genai_config.runtime import ENGINE_DRAFTS
from onnxkit.weights.checkpoint import Checkpoint
from scripts.pair.continuations import Continuations
from scripts.pair.drafter_model import Blocks, TrainableDrafter
from scripts.pair.optimizing import Log, optimizer_of, schedule, step_with
from tests.tiny_drafter import Json, make_config, make_tensors, write

TEXTS, ANCHORS = 16, 8  # of a step: texts, and blocks of each
DISCOUNT = 0.85  # a later row counts by so much less than the one before it, for it counts only where that one is right
TOP_K = 8  # DFlash 2's candidates


def sample_blocks(
    data: Continuations, rows: Tensor, config: DrafterConfig, generator: torch.Generator
) -> tuple[Blocks, Tensor]:
    """Random anchors in the target's own words, and the tokens after them, ``[B, K, drafts]``."""
    drafts, length = config.num_draft_tokens, data.tokens.shape[1]
    first = data.prompt_lengths[rows][:, None] - 1
    share = torch.rand(len(rows), ANCHORS, generator=generator)
    anchors = first + (share * (length - drafts - first)).long()
    after = anchors[..., None] + torch.arange(drafts + 1)
    tokens = data.tokens[rows].gather(1, after.flatten(1)).reshape(after.shape)
    return Blocks(anchors, tokens[..., 0]), tokens


def loss_of(drafter: TrainableDrafter, taps: Tensor, blocks: Blocks, tokens: Tensor) -> Tensor:
    """Cross-entropy of each row alone and of it after the true token before it, in nats per drafted token."""
    alone, after = drafter.scores(drafter(taps, blocks), tokens[..., :-1])
    weight = DISCOUNT ** torch.arange(tokens.shape[-1] - 1)
    weight = weight / weight.sum()
    losses = [cross_entropy(scores.movedim(-1, 1), tokens[..., 1:], reduction="none") for scores in (alone, after)]
    return (sum(losses) * weight).sum(-1).mean()


def accepted_on(drafter: TrainableDrafter, taps: Tensor, blocks: Blocks, tokens: Tensor) -> float:
    """The mean number of leading drafts that are right, of the first seven, at anchors anywhere."""
    with torch.no_grad():
        hidden = drafter(taps, blocks)
        previous, right = tokens[..., :1], []
        for row in range(ENGINE_DRAFTS):
            previous = drafter.scores(hidden[:, :, row : row + 1], previous)[1].argmax(-1)
            right.append(previous == tokens[..., row + 1 : row + 2])
    return float(torch.cat(right, dim=-1).long().cumprod(-1).sum(-1).float().mean())


def train_drafter(
    config: DrafterConfig,
    tables: tuple[Tensor, Tensor],
    data: Continuations,
    held_out: Continuations,
    steps: int,
    rate: float,
) -> tuple[TrainableDrafter, Log]:
    """Train a new drafter. The log has loss and mean accepted length on ``held_out`` at some steps."""
    torch.manual_seed(4)
    generator = torch.Generator().manual_seed(4)
    drafter = TrainableDrafter(config, *tables)
    optimizer = optimizer_of(drafter, rate)
    everything = torch.arange(len(held_out.tokens))
    blocks, tokens = sample_blocks(held_out, everything, config, torch.Generator().manual_seed(5))
    log: Log = []
    start = time.monotonic()
    for step in range(steps + 1):
        if step % max(1, steps // 12) == 0 or step == steps:
            with torch.no_grad():
                loss = float(loss_of(drafter, held_out.taps, blocks, tokens))
            accepted = accepted_on(drafter, held_out.taps, blocks, tokens)
            seconds = round(time.monotonic() - start)
            log.append({"step": step, "loss": round(loss, 4), "accepted": round(accepted, 3), "seconds": seconds})
            print(config.kind, log[-1], flush=True)
        if step == steps:
            break
        rows = torch.randint(len(data.tokens), (TEXTS,), generator=generator)
        sampled, wanted = sample_blocks(data, rows, config, generator)
        loss_now = loss_of(drafter, data.taps[rows], sampled, wanted)
        step_with(optimizer, drafter, loss_now, rate * schedule(step, steps))
    return drafter.eval(), log


def drafter_config(kind: str, mask: int) -> tuple[Json, DrafterConfig]:
    """A drafter's ``config.json``, and how the exporter reads it."""
    config = make_config(kind)
    config["dflash_config"]["mask_token_id"] = mask
    if kind == "dflash2":
        config["dflash_config"]["selector_top_k"] = TOP_K
    with TemporaryDirectory() as folder:
        write(Path(folder), config, make_tensors(config))
        return config, read_drafter(Checkpoint(Path(folder)))


def rounded(drafter: TrainableDrafter) -> TrainableDrafter:
    """Round every weight to what bf16 can hold."""
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))
    return drafter


def write_drafter(folder: Path, config: Json, drafter: TrainableDrafter, example: Continuations) -> float:
    """Write a drafter, once it has been shown that the reference makes of its files what the training code does.

    Returns:
        The largest difference of a hidden state or a score in an example.
    """
    tensors = {
        name: tensor.to(torch.float32).numpy().astype(ml_dtypes.bfloat16)
        for name, tensor in drafter.state_dict().items()
    }
    with TemporaryDirectory() as trial:
        write(Path(trial), config, tensors)
        worst = difference(Path(trial), drafter, example)
    assert worst < 1e-4, f"the reference and the training code differ by {worst}"
    write(folder, config, tensors)
    return worst


def difference(folder: Path, drafter: TrainableDrafter, example: Continuations) -> float:
    """Draft one block with the reference and with the training code: the largest difference of what they give."""
    reference = load_drafter(folder, read_drafter(Checkpoint(folder)), drafter.embedding, drafter.head)
    assert reference.config == drafter.config
    anchor = int(example.prompt_lengths[0]) + 20
    token, request = int(example.tokens[0, anchor]), Request()
    extend(reference, request, example.taps[0, :anchor])
    lattice, wanted = draft(reference, request, token), block_hidden(reference, request, token)
    with torch.no_grad():
        hidden = drafter(example.taps[:1], Blocks(torch.tensor([[anchor]]), torch.tensor([[token]])))
        worst = float((hidden[0, 0] - wanted[-hidden.shape[2] :]).abs().max())
        previous = torch.cat([torch.full((1, reference.config.top_k), token), lattice.ids[:-1]])
        for candidate in range(reference.config.top_k):
            scores = drafter.scores(hidden, previous[:, candidate][None, None])[1][0, 0]
            worst = max(worst, float((scores.gather(1, lattice.ids) - lattice.scores[:, candidate]).abs().max()))
    return worst
