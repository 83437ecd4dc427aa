"""The runtime's Engine on lowered exports with real drafters: the text is the same, and drafts are proposed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draftsmith.validation.engine import EngineRun, run_engine
from draftsmith.validation.reference import greedy, load_reference, operator_epsilon
from draftsmith.validation.widen import widen
from tests.checkpoints import TINY
from tests.drafters import Change, drafter, own, sliding, yarn
from tests.nightly import sampled
from tests.runtime import VOCAB, export, random_ids

COUNT = 24
PROMPTS = [random_ids(21, 1, 300)[0].tolist(), random_ids(22, 1, 11)[0].tolist()]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    """transformers' greedy tokens."""
    with operator_epsilon():
        model = load_reference(TINY, torch.bfloat16)
        return [greedy(model, torch.tensor([prompt]), COUNT)[0].tolist() for prompt in PROMPTS]


def run(folder: Path, wanted: list[list[int]], drafter_folder: Path | None, *options: str) -> EngineRun:
    with_drafter = "use_paged_attention=true" if drafter_folder is None else f"drafter_path={drafter_folder}"
    out = export(TINY, folder / "out", with_drafter, *options, precision="bf16", provider="cuda")
    widen(out, folder / "low")
    config = json.loads((folder / "low" / "genai_config.json").read_text())
    unused = next(token for token in range(VOCAB) if not any(token in text for text in [*wanted, *PROMPTS]))
    config["model"]["eos_token_id"] = [unused]  # so that all texts are as long as asked for
    (folder / "low" / "genai_config.json").write_text(json.dumps(config))
    return run_engine(folder / "low", PROMPTS, COUNT)


# Kind, changes of the drafter, options; the drafts of a proposal, and how many of them the engine takes.
CASES: list[tuple[str, tuple[Change, ...], tuple[str, ...], int, int]] = [
    ("dflash2", (), ("context_length=1024",), 7, 7),
    ("dflash2", (sliding(40),), (), 7, 7),
    ("dflash2", (yarn, own(conv_kernel_size=3)), ("dflash2_num_draft_tokens=3", "context_length=1024"), 3, 3),
    ("dflash2", (own(block_size=16),), ("context_length=1024",), 7, 7),
    ("dflash2", (), ("context_length=1024", "max_draft_tokens=4", "state_update_capacity=8"), 7, 4),
    ("dflash2", (sliding(40),), ("prefix_caching=true",), 7, 7),
    ("dspark", (), ("prefix_caching=false",), 7, 7),
    ("dspark", (own(markov_head_type="gated"), sliding(64)), ("dspark_num_draft_tokens=5", "dspark_top_k=8"), 5, 5),
]


@pytest.mark.parametrize(("kind", "changes", "options", "proposed", "taken"), sampled(CASES, every=2))
def test_tokens_are_transformers_own(
    tmp_path: Path,
    wanted: list[list[int]],
    kind: str,
    changes: tuple[Change, ...],
    options: tuple[str, ...],
    proposed: int,
    taken: int,
) -> None:
    result = run(tmp_path, wanted, drafter(tmp_path / "d", kind, *changes), *options)
    assert result.tokens == wanted
    assert result.drafts_per_proposal == proposed
    drafted, rounds = (result.count(key) for key in ("draft_tokens_proposed", "rounds"))
    assert rounds > COUNT  # two requests, each with a round for nearly every token
    assert (taken - 1) * rounds < drafted <= taken * rounds  # the last ones of a text are fewer


def test_without_a_drafter(tmp_path: Path, wanted: list[list[int]]) -> None:
    result = run(tmp_path, wanted, None)
    assert result.tokens == wanted
    assert result.count("draft_tokens_proposed") == 0
