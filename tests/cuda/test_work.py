"""The work of a step in operations of a GPU, against what onnxruntime-genai's own builder asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.log import Counts
from tests.cuda.work import decode_step, draft_round, export

# Operations of the other builder's exports, for one request, as benchmarks/launches.py prints them. They change with
# the versions of the runtimes only; every night they are counted anew.
PEER = {None: 179, "dspark": 266, "dflash2": 352}
# The share of them that ours may have.
LIMITS = {None: 0.79, "dspark": 0.79, "dflash2": 0.72}
# What is left where CUDA graphs are replayed: the runtime's own operations, and a graph of the target and of a drafter.
REPLAYED = {None: 1, "dspark": 2, "dflash2": 2}


def counted(folder: Path, kind: str | None) -> tuple[Counts, Counts]:
    """A plain step, or a round that rejects all drafts; and the runtime's own share of it, which is the least then."""
    step = draft_round(folder, accepted=False) if kind else decode_step(folder)
    return step.counts(), step.own()


@pytest.mark.parametrize("kind", PEER)
def test_operations_of_a_step(tmp_path: Path, kind: str | None) -> None:
    counts, _ = counted(export("ours", tmp_path, kind), kind)
    assert counts.operations <= LIMITS[kind] * PEER[kind]
    assert counts.refusals == 0


@pytest.mark.parametrize("kind", PEER)
def test_cuda_graphs_replay_all_of_it(tmp_path: Path, kind: str | None) -> None:
    counts, own = counted(export("graphs", tmp_path, kind), kind)
    assert counts.graphs == REPLAYED[kind]
    assert counts.operations - own.operations == counts.graphs
    assert counts.refusals == 0


@pytest.mark.nightly  # the other builder needs half a minute
@pytest.mark.parametrize("kind", PEER)
def test_operations_of_the_other_builder(tmp_path: Path, kind: str | None) -> None:
    counts, _ = counted(export("theirs", tmp_path, kind), kind)
    assert counts.operations == PEER[kind]
