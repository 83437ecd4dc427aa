"""The work of a step in operations of a GPU, against what onnxruntime-genai's own builder asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.log import Step
from tests.cuda.nightly import NIGHTLY
from tests.cuda.work import decode_step, draft_round, export

# Operations of the other builder's exports, for one request, as benchmarks/launches.py prints them. They change with the
# versions of the runtimes only; every night they are counted anew.
PEER = {None: 179, "dspark": 266, "dflash2": 352}
# What ours may have of them.
LIMITS = {None: 0.92, "dspark": 0.89, "dflash2": 0.79}


def step_of(folder: Path, kind: str | None) -> Step:
    """A step of plain decoding, or a round whose drafts are all rejected: the one with the least of the runtime's own."""
    return draft_round(folder, accepted=False) if kind else decode_step(folder)


@pytest.mark.parametrize("kind", PEER)
def test_operations_of_a_step(tmp_path: Path, kind: str | None) -> None:
    counts = step_of(export("ours", tmp_path, kind), kind).counts()
    assert counts.operations <= LIMITS[kind] * PEER[kind]
    assert counts.refusals == 0


@pytest.mark.skipif(not NIGHTLY, reason="for the night (NIGHTLY=1): the other builder needs half a minute")
@pytest.mark.parametrize("kind", PEER)
def test_operations_of_the_peer(tmp_path: Path, kind: str | None) -> None:
    assert step_of(export("theirs", tmp_path, kind), kind).counts().operations == PEER[kind]
