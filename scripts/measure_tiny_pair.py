"""Accepted drafts of a trained pair, in the Engine and by the reference: python -m scripts.measure_tiny_pair PAIR_DIR

Exports the target with each drafter, lowers the export to the CPU, and lets the Engine and the reference say the same
tokens after held-out prompts. Both have to accept the same drafts. Needs the extras "cpu" and "verify".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from builder.cli import main as build
from draftsmith.acceptance import Acceptance
from draftsmith.validation.engine import EngineRun, run_engine
from draftsmith.validation.reference import greedy, load_reference, operator_epsilon
from draftsmith.validation.widen import widen
from scripts.pair.acceptance import accepted_lengths

COUNT = 64
BATCH = 4  # prompts at once, as many as a lowered export takes


def run_pair(target: Path, drafter: Path, prompts: list[list[int]]) -> list[EngineRun]:
    """Export a pair, and let the Engine go on with the prompts, a few at a time."""
    with TemporaryDirectory() as folder:
        out, low = Path(folder, "out"), Path(folder, "low")
        options = ["--extra_options", f"drafter_path={drafter}", "context_length=1024"]
        assert build(["-i", str(target), "-o", str(out), "-p", "bf16", "-e", "cuda", *options]) == 0
        widen(out, low)
        return [run_engine(low, prompts[first : first + BATCH], COUNT) for first in range(0, len(prompts), BATCH)]


def wanted_tokens(target: Path, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy tokens after each prompt."""
    model = load_reference(target, torch.bfloat16)
    with operator_epsilon():
        return [greedy(model, torch.tensor([prompt]), COUNT)[0].tolist() for prompt in prompts]


def main() -> None:
    """Print what the Engine and the reference accepted, drafter by drafter."""
    torch.set_num_threads(2)
    pair = Path(sys.argv[1])
    prompts: list[list[int]] = json.loads((pair / "prompts.json").read_text(encoding="utf-8"))
    wanted = wanted_tokens(pair / "target", prompts)
    for kind in ("dflash2", "dspark"):
        runs = run_pair(pair / "target", pair / kind, prompts)
        same = sum(a == b for a, b in zip([text for run in runs for text in run.tokens], wanted, strict=True))
        engine = [sum(column) for column in zip(*(run.accepted_lengths() for run in runs), strict=True)]
        reference = Acceptance.of(accepted_lengths(pair / "target", pair / kind, prompts, COUNT, cut=True))
        print(f"{kind}: {same} of {len(wanted)} texts are what transformers says")
        for name in ("rounds", "draft_tokens_proposed"):
            print(f"  {name}: {sum(run.count(name) for run in runs)}")
        print(f"  accepted lengths, the Engine:    {engine}")
        print(f"  accepted lengths, the reference: {list(reference.histogram)}, mean {reference.mean:.3f}")
        assert same == len(wanted)
        assert engine == list(reference.histogram)


if __name__ == "__main__":
    main()
