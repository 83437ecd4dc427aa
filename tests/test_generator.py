"""The runtime itself: onnxruntime-genai's Generator on the exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import pytest
import torch

from draftsmith.validation.reference import greedy
from draftsmith.validation.session import Array
from tests.checkpoints import TINY
from tests.runtime import export, generate, random_ids

COUNT = 64


def expected(reference: Any, prompts: Array, count: int = COUNT) -> list[list[int]]:
    """transformers' greedy tokens, each row up to its first stop id, which the runtime leaves out."""
    rows = greedy(reference, torch.tensor(prompts), count).tolist()
    stops = [next((i for i, token in enumerate(row) if token in (0, 2)), count) for row in rows]
    return [row[:stop] for row, stop in zip(rows, stops, strict=True)]


def assert_equal_up_to_the_stop(rows: list[list[int]], wanted: list[list[int]]) -> None:
    """In a batch the runtime fills up rows that have ended; what counts is what comes before."""
    assert [row[: len(good)] for row, good in zip(rows, wanted, strict=True)] == wanted


@pytest.mark.parametrize("seed", [2, 3])
def test_greedy_tokens_equal_transformers(tiny_export: Path, reference: Any, seed: int) -> None:
    prompt = random_ids(seed, 1, 40)
    tokens = generate(tiny_export, prompt, COUNT)
    assert tokens == expected(reference, prompt)
    assert len(tokens[0]) == COUNT and len(set(tokens[0])) > COUNT // 4  # a text, not one token over and over


def test_a_batch_of_equal_lengths(tiny_export: Path, reference: Any) -> None:
    prompts = random_ids(3, 3, 24)
    assert_equal_up_to_the_stop(generate(tiny_export, prompts, COUNT), expected(reference, prompts))


def test_a_prompt_in_parts(tiny_export: Path, reference: Any) -> None:
    prompt = random_ids(4, 1, 50)
    assert generate(tiny_export, prompt, 16, chunks=3) == expected(reference, prompt, 16)


def test_all_logits_and_hidden_states_run_too(full_export: Path, reference: Any) -> None:
    prompt = random_ids(5, 1, 20)
    assert generate(full_export, prompt, COUNT) == expected(reference, prompt)


def test_one_buffer_for_past_and_present(tiny_export: Path, reference: Any) -> None:
    """What -e cuda asks for."""
    prompt = random_ids(6, 1, 20)
    assert generate(tiny_export, prompt, 16, past_present_share_buffer=True) == expected(reference, prompt, 16)


def test_the_padding_token_inside_a_prompt_is_a_token(tiny_export: Path, reference: Any) -> None:
    """The runtime masks it; the graph does not read the mask's zeros, and takes the last row's logits."""
    prompt = random_ids(7, 1, 30)
    prompt[0, 10] = prompt[0, -1] = 0
    assert generate(tiny_export, prompt, 16) == expected(reference, prompt, 16)


def test_stop_ids_end_the_text(tmp_path: Path, tiny_export: Path) -> None:
    prompt = random_ids(8, 1, 12)
    tokens = generate(tiny_export, prompt, 16)[0]
    folder = export(TINY, tmp_path / "out")
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["eos_token_id"] = [tokens[5]]
    (folder / "genai_config.json").write_text(json.dumps(config))
    assert generate(folder, prompt, 16)[0] == tokens[: tokens.index(tokens[5])]


def test_the_tokenizer_and_the_chat_template_work(tiny_export: Path) -> None:
    from transformers import AutoTokenizer

    ours = og.Tokenizer(og.Model(str(tiny_export)))
    theirs = AutoTokenizer.from_pretrained(TINY)
    for text in (
        "Ada found the lanter.",
        "def f(x):\n    return x * 2 + 1\n",
        '{"n": "Émile", "k": 12}',
        "<|im_start|>a",
    ):
        ids = theirs(text).input_ids
        assert np.array(ours.encode(text)).tolist() == ids
        assert ours.decode(np.array(ids, np.int32)) == theirs.decode(ids, skip_special_tokens=True)
    messages = [{"role": "user", "content": "Hello"}]
    assert ours.apply_chat_template(json.dumps(messages), add_generation_prompt=True) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
