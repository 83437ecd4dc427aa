"""Train a tiny target and both drafters for it: python -m scripts.train_tiny_pair OUT_DIR [CURVES.svg]

The target learns generated documents; then it writes texts itself, and the drafters learn to foresee those. Everything
is seeded. Two cores need about 15 minutes. Needs the extras "verify" and "dev". Written to OUT_DIR:

- ``target``, ``dflash2``, ``dspark``: the checkpoints, bf16;
- ``prompts.json``: held-out prompts as token ids, none of which occurs in what anything was trained on;
- ``training.json``: settings, learning curves, times, accepted lengths.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or threads that wait take a shared core from those that work

import argparse
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from draftsmith.acceptance import Acceptance
from draftsmith.validation.reference import load_reference
from scripts.pair.acceptance import accepted_lengths
from scripts.pair.continuations import Continuations, continuations
from scripts.pair.curves import draw
from scripts.pair.drafter_training import drafter_config, rounded, train_drafter, write_drafter
from scripts.pair.optimizing import Log
from scripts.pair.target import LENGTH, batches, losses_on, train_target, write_target
from scripts.pair.text import make_world, windows

TOKENIZER_FOLDER = Path(__file__).parents[1] / "tests" / "assets" / "tiny-qwen35"
MASK = 630
TARGET_RATE, DRAFTER_RATE = 3e-3, 2e-3  # learning rates at their highest
KINDS = ("dflash2", "dspark")
PROMPTS, SAID = 32, 96  # held-out prompts to measure with, and the tokens that the target says after each
PROMPT_LENGTHS = (24, 56)
LARGEST, LEAST = 5.9e6, 2.5  # bytes of all that is written; mean accepted length of either drafter


def held_out_prompts(seen: list[list[int]], candidates: list[list[int]], rng: random.Random) -> list[list[int]]:
    """Prompts of several lengths, none of which occurs anywhere in ``seen``."""
    texts = ["".join(map(chr, row)) for row in seen]
    prompts = []
    for row in candidates:
        prompt = row[: rng.randint(*PROMPT_LENGTHS)]
        as_text = "".join(map(chr, prompt))
        if not any(as_text in text for text in texts):
            prompts.append(prompt)
    assert len(prompts) >= PROMPTS, f"only {len(prompts)} prompts are new"
    return prompts[:PROMPTS]


def as_lines(report: Mapping[str, object]) -> str:
    """JSON with a line for each part."""
    return "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in report.items()) + "\n}\n"


def mask_token(data: Continuations, vocab: int) -> int:
    """The usual mask token; where the texts use that one, the last of those that they use least."""
    counts = torch.bincount(data.tokens.flatten(), minlength=vocab)
    return MASK if counts[MASK] == 0 else vocab - 1 - int(counts.flip(0).argmin())


class Run:
    """One run: where it writes, what it has found out, and how long its parts took."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: Path = arguments.out
        self.start = time.monotonic()
        self.seconds: dict[str, int] = {}
        self.logs: dict[str, Log] = {}
        settings = {key: value for key, value in vars(arguments).items() if key not in ("out", "curves")}
        settings |= {"length": LENGTH, "prompts": PROMPTS, "tokens_after_each": SAID}
        self.report: dict[str, object] = {"settings": settings, "seconds": self.seconds}
        self.world, self.tokenizer = make_world(), Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json"))

    def ended(self, part: str) -> None:
        """Note how long a part took."""
        self.seconds[part] = round(time.monotonic() - self.start) - sum(self.seconds.values())

    def train_target(self) -> Any:
        """Train and write the target; gives it back as a bf16 export holds it."""
        held_out = torch.tensor(windows(self.world, self.tokenizer, random.Random(99), 24, LENGTH))
        steps = self.arguments.target_steps
        model, log = train_target(self.world, self.tokenizer, held_out, steps, TARGET_RATE)
        write_target(model, self.out / "target", TOKENIZER_FOLDER)
        model = load_reference(self.out / "target", torch.bfloat16)
        loss, right = losses_on(model, held_out)
        self.logs["target"] = log
        self.report["target"] = {"loss_in_bf16": round(loss, 4), "right_in_bf16": round(right, 4), "log": log}
        self.ended("target")
        return model

    def continuations(self, model: Any, seed: int, count: int) -> Continuations:
        """What the target says after new prompts."""
        taps = drafter_config("dspark", MASK)[1].taps
        return continuations(model, self.world, self.tokenizer, random.Random(seed), count, LENGTH, taps)

    def write_prompts(self, data: Continuations) -> list[list[int]]:
        """Write and give prompts that nothing was trained on."""
        steps = self.arguments.target_steps
        seen = [text for batch in batches(self.world, self.tokenizer, steps) for text in batch]
        seen += data.tokens.tolist()
        candidates = windows(self.world, self.tokenizer, random.Random(9), 4 * PROMPTS, PROMPT_LENGTHS[1])
        prompts = held_out_prompts(seen, candidates, random.Random(9))
        (self.out / "prompts.json").write_text(json.dumps(prompts) + "\n", encoding="utf-8")
        return prompts

    def train_drafters(self, tables: tuple[Tensor, Tensor], data: Continuations, held_out: Continuations) -> None:
        """Train, write and measure both drafters."""
        prompts = self.write_prompts(data)
        mask = mask_token(data, len(tables[0]))
        for kind in KINDS:
            raw, config = drafter_config(kind, mask)
            steps = self.arguments.drafter_steps
            drafter, log = train_drafter(config, tables, data, held_out, steps, DRAFTER_RATE)
            worst = write_drafter(self.out / kind, raw, rounded(drafter), held_out)
            acceptance = Acceptance.of(accepted_lengths(self.out / "target", self.out / kind, prompts, SAID))
            found = {"difference_from_reference": float(f"{worst:.1e}"), "acceptance": acceptance.as_json()}
            print(kind, found, flush=True)
            self.logs[kind] = log
            self.report[kind] = found | {"log": log}
            self.ended(kind)
            assert acceptance.mean >= LEAST, f"{kind} has too few accepted drafts a round"


def main() -> None:
    """Train, write and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("curves", type=Path, nargs="?", help="where to draw the learning curves, an SVG file")
    parser.add_argument("--target-steps", type=int, default=840)
    parser.add_argument("--drafter-steps", type=int, default=600)
    parser.add_argument("--texts", type=int, default=1024, help="texts of the target that the drafters learn from")
    arguments = parser.parse_args()
    torch.set_num_threads(2)

    run = Run(arguments)
    model = run.train_target()
    data, held_out = run.continuations(model, 7, arguments.texts), run.continuations(model, 8, 48)
    run.ended("texts")
    run.train_drafters((model.model.embed_tokens.weight.data, model.lm_head.weight.data), data, held_out)
    (run.out / "training.json").write_text(as_lines(run.report), encoding="utf-8")
    if arguments.curves:
        draw(arguments.curves, run.logs)
    size = sum(path.stat().st_size for path in run.out.rglob("*") if path.is_file())
    print(f"{size / 1e6:.2f} MB, {sum(run.seconds.values())} s")
    assert size < LARGEST, "too large to be bundled"


if __name__ == "__main__":
    main()
