"""The drafters' numbers: graphs alone, lowered to the CPU, against the PyTorch reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from draftsmith.validation.draft_session import Turn
from draftsmith.validation.drafter_reference import Request, draft, extend
from draftsmith.validation.session import Array
from tests.drafters import Alone, Change, alone, drafter, own, sliding, top, yarn

LIMIT = 1e-5
FULL, SLIDING = "full_attention", "sliding_attention"
F16 = ir.DataType.FLOAT16


def taps(seed: int, rows: int, width: int = 384) -> Array:
    """Hidden states of a target, with a spread that real ones have."""
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def largest_error(made: Alone, steps: list[list[tuple[int, int | None]]], extra_slots: int = 0) -> float:
    """The largest difference of scores over steps; each gives every request's new rows and its anchor.

    Candidates must be equal. The anchors of later steps are not the drafts: the block before was rejected.
    """
    requests = len(steps[0])
    session, expected, worst = made.session(requests), [Request() for _ in range(requests)], 0.0
    for number, step in enumerate(steps):
        turns = [Turn(taps(100 * number + i, rows), anchor) for i, (rows, anchor) in enumerate(step)]
        results = session(turns, extra_slots)
        for request, turn, result in zip(expected, turns, results, strict=True):
            extend(made.reference, request, torch.from_numpy(turn.taps))
            if turn.anchor is None:
                assert result is None
                continue
            assert result is not None
            lattice = draft(made.reference, request, turn.anchor)
            assert (result[0] == lattice.ids.numpy()).all()
            worst = max(worst, float(np.abs(result[1] - lattice.scores.numpy()).max()))
    return worst


# Two requests of 300 and 9 context rows, then two steps that accept some of the drafts and reject the rest.
THREE_STEPS: list[list[tuple[int, int | None]]] = [[(300, 17), (9, 401)], [(3, 99), (8, 5)], [(1, 250), (5, 638)]]

VARIANTS: dict[str, tuple[str, tuple[Change, ...]]] = {
    "dflash2": ("dflash2", ()),
    "three taps": ("dflash2", (own(conv_kernel_size=3),)),
    "one tap": ("dflash2", (own(conv_kernel_size=1),)),
    "causal": ("dflash2", (top(is_causal=True),)),
    "window": ("dflash2", (sliding(40),)),
    "causal window": ("dflash2", (sliding(40, causal=True),)),
    "causal window by default": ("dflash2", (sliding(40, causal=None),)),
    "causal window smaller than the block": ("dflash2", (sliding(5, causal=True),)),
    "mixed": ("dflash2", (sliding(40, SLIDING, FULL),)),
    "mixed, causal where it slides": ("dflash2", (sliding(40, FULL, SLIDING, causal=None),)),
    "yarn": ("dflash2", (yarn,)),
    "yarn window": ("dflash2", (yarn, sliding(200))),
    "scales": ("dflash2", (own(input_embedding_scale=11.3, output_multiplier=0.19, final_logit_softcapping=0.5),)),
    "block of 2": ("dflash2", (own(block_size=2),)),
    "block of 16": ("dflash2", (own(block_size=16),)),
    "taps in another order": ("dflash2", (own(target_layer_ids=[5, 1, 3]),)),
    "dspark": ("dspark", ()),
    "gated": ("dspark", (own(markov_head_type="gated"),)),
    "dspark causal": ("dspark", (top(is_causal=True),)),
    "dspark window": ("dspark", (sliding(64),)),
    "dspark yarn": ("dspark", (yarn,)),
    "dspark scale": ("dspark", (own(input_embedding_scale=0.3, output_multiplier=7.0, final_logit_softcapping=0.1),)),
    "block of 7": ("dspark", (own(block_size=7),)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_and_candidates(tmp_path: Path, name: str) -> None:
    kind, changes = VARIANTS[name]
    made = alone(drafter(tmp_path / "d", kind, *changes), tmp_path / "out")
    assert largest_error(made, THREE_STEPS) < LIMIT


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_a_float16_target(tmp_path: Path, kind: str) -> None:
    made = alone(drafter(tmp_path / "d", kind), tmp_path / "out", dtype=F16)
    assert largest_error(made, THREE_STEPS) < LIMIT


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_a_tied_target(tmp_path: Path, kind: str) -> None:
    made = alone(drafter(tmp_path / "d", kind), tmp_path / "out", tied=True)
    assert largest_error(made, THREE_STEPS) < LIMIT


@pytest.mark.parametrize(("kind", "drafts"), [("dflash2", 1), ("dflash2", 3), ("dspark", 2), ("dspark", 5)])
def test_fewer_drafts(tmp_path: Path, kind: str, drafts: int) -> None:
    made = alone(drafter(tmp_path / "d", kind), tmp_path / "out", drafts=drafts)
    assert made.config.num_draft_tokens == drafts
    assert largest_error(made, THREE_STEPS) < LIMIT


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
@pytest.mark.parametrize("window", [None, 40])
def test_requests_without_a_slot_and_slots_without_a_request(tmp_path: Path, kind: str, window: int | None) -> None:
    changes = () if window is None else (sliding(window),)
    made = alone(drafter(tmp_path / "d", kind, *changes), tmp_path / "out")
    fewer: list[list[tuple[int, int | None]]] = [
        [(60, None), (200, 9), (11, None)],
        [(2, 30), (3, None), (4, 31)],
        [(1, 7), (1, 8), (1, None)],
    ]
    assert largest_error(made, fewer) < LIMIT
    assert largest_error(made, THREE_STEPS, extra_slots=2) < LIMIT


def test_a_page_boundary_inside_a_block(tmp_path: Path) -> None:
    """The block's rows lie on both sides of a boundary at every one of its rows."""
    made = alone(drafter(tmp_path / "d", "dflash2"), tmp_path / "out", page=16)
    for start in range(9, 17):
        assert largest_error(made, [[(start, 12)], [(16, 13)]]) < LIMIT


def test_a_ring_that_has_gone_round_many_times(tmp_path: Path) -> None:
    made = alone(drafter(tmp_path / "d", "dflash2", sliding(40)), tmp_path / "out", page=16)
    steps: list[list[tuple[int, int | None]]] = [[(300, 17), (9, 401)]]
    steps += [[(1 + (3 * i) % 8, i), (1 + (5 * i) % 8, 600 - i)] for i in range(60)]
    assert largest_error(made, steps) < LIMIT
