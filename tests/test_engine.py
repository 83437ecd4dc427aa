"""The runtime's Engine on the lowered packed target: without drafts, and with drafts that are partly right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftsmith.validation.engine import run_engine
from draftsmith.validation.reference import greedy, load_reference, operator_epsilon
from draftsmith.validation.widen import widen
from tests.checkpoints import TINY
from tests.runtime import VOCAB, export, random_ids
from tests.stub_drafter import add_stub_drafter

COUNT = 48
PROMPTS = [random_ids(11, 1, 300)[0].tolist(), random_ids(12, 1, 11)[0].tolist()]  # one crosses a page of 256


@pytest.fixture(scope="module")
def texts() -> Iterator[list[list[int]]]:
    """transformers' greedy texts, prompts included, some tokens longer than what is decoded."""
    with operator_epsilon():
        model = load_reference(TINY, torch.bfloat16)
        yield [prompt + greedy(model, torch.tensor([prompt]), COUNT + 10)[0].tolist() for prompt in PROMPTS]


def lowered(folder: Path, texts: list[list[int]], *options: str) -> Path:
    out = export(TINY, folder / "out", "use_paged_attention=true", *options, precision="bf16", provider="cuda")
    widen(out, folder / "low")
    config = json.loads((folder / "low" / "genai_config.json").read_text())
    unused = next(token for token in range(VOCAB) if not any(token in text for text in texts))
    config["model"]["eos_token_id"] = [unused]  # so that all texts are as long as asked for
    (folder / "low" / "genai_config.json").write_text(json.dumps(config))
    return folder / "low"


def wanted(texts: list[list[int]]) -> list[list[int]]:
    return [text[len(prompt) :][:COUNT] for text, prompt in zip(texts, PROMPTS, strict=True)]


# Of targets without a drafter; the last is in every run.
OPTIONS = [
    pytest.param((), marks=pytest.mark.nightly),
    pytest.param(("state_update_capacity=7",), marks=pytest.mark.nightly),
    ("prune_lm_head=false", "paged_chunk_size=64"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_without_drafts(tmp_path: Path, texts: list[list[int]], options: tuple[str, ...]) -> None:
    run = run_engine(lowered(tmp_path, texts, *options), PROMPTS, COUNT)
    assert run.tokens == wanted(texts)
    assert not any(run.accepted_lengths())


@pytest.mark.parametrize("prune", ["true", "false"])
def test_with_drafts(tmp_path: Path, texts: list[list[int]], prune: str) -> None:
    """Every accepted length from 0 to 7 occurs, and the text is the same."""
    options = ("state_update_capacity=7", "max_draft_tokens=7", "aux_hidden_state_layers=2,4,8")
    folder = lowered(tmp_path, texts, *options, f"prune_lm_head={prune}")
    add_stub_drafter(folder, texts, [len(prompt) for prompt in PROMPTS])
    run = run_engine(folder, PROMPTS, COUNT)
    assert run.tokens == wanted(texts)
    assert run.drafts_per_proposal == 7
    lengths: Any = run.accepted_lengths()
    assert len(lengths) == 8 and all(lengths), lengths


def test_fewer_drafts_than_the_block(tmp_path: Path, texts: list[list[int]]) -> None:
    options = ("state_update_capacity=3", "max_draft_tokens=3", "aux_hidden_state_layers=1")
    folder = lowered(tmp_path, texts, *options)
    add_stub_drafter(folder, texts, [len(prompt) for prompt in PROMPTS])
    run = run_engine(folder, PROMPTS, COUNT)
    assert run.tokens == wanted(texts)
    assert run.drafts_per_proposal == 3


def test_a_long_prompt_in_small_chunks_is_no_standstill(tmp_path: Path, texts: list[list[int]]) -> None:
    """Steps are bounded, so that an Engine that is stuck is an error; a chunk of a prompt is a step, too."""
    folder = lowered(tmp_path, texts, "paged_chunk_size=16")
    run = run_engine(folder, [random_ids(13, 1, 900)[0].tolist()], 1)
    assert len(run.tokens[0]) == 1


def test_without_state_updates_a_drafter_is_never_asked(tmp_path: Path, texts: list[list[int]]) -> None:
    """Why a drafter will imply state updates: without them the runtime decodes slowly and says nothing."""
    folder = lowered(tmp_path, texts, "aux_hidden_state_layers=1")
    add_stub_drafter(folder, texts, [len(prompt) for prompt in PROMPTS])
    run = run_engine(folder, PROMPTS, COUNT)
    assert run.tokens == wanted(texts)
    assert run.drafts_per_proposal == 0
