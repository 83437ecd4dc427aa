"""Running a drafter in onnxruntime as the Engine does: context rows, blocks, and a cache that may be a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from draftsmith.validation.ranges import take_ranges
from draftsmith.validation.session import CPU, Array, Place, Session
from genai_config.runtime import ingested, ring_pages


@dataclass(frozen=True)
class Turn:
    """One request's part of a run: hidden states of newly committed tokens, and the anchor if it wants drafts."""

    taps: Array
    anchor: int | None = None


class DraftSession:
    """Requests over one pool of pages, which are handed out in a shuffled order and hold garbage at first.

    With a window, a request's pages form a ring, and only the part of a long context that a block can see is ingested.

    Args:
        graph: The drafter, or a lowered copy.
        requests: How many requests share the pool.
        block: Rows of a block.
        mask: The token of rows that are not the anchor.
        window: The runtime's ``sliding_window``; None if the cache grows with the text.
        positions: The most positions that a request will have.
        place: Where it runs.
        data: The folder of its external data, if that is not the graph's own.
    """

    def __init__(
        self,
        graph: Path,
        requests: int,
        block: int,
        mask: int,
        window: int | None,
        positions: int = 1200,
        place: Place = CPU,
        data: Path | None = None,
    ) -> None:
        self.session = Session(graph, place, data, paged=True)
        self.largest: dict[str, float] = {}  # the largest magnitudes of a graph with ranges, by place
        self.inputs = self.session.inputs
        self.block, self.mask, self.window = block, mask, window
        self.results: dict[str, Array] = {}  # all outputs of the last run
        self.page = next(v.shape[1] for name, v in self.inputs.items() if name.startswith("past_key_values"))
        columns = positions // self.page + 1
        ring = columns if window is None else min(ring_pages(window, block, self.page), columns)
        pages = requests * ring + 3
        rng = np.random.default_rng(0)
        for name, value in self.inputs.items():
            if name.startswith("past_key_values"):
                self.session.put(name, 10 * rng.standard_normal([pages, *value.shape[1:]], np.float32))
        free = rng.permutation(pages)[: requests * ring].reshape(requests, ring)
        self.tables = free[:, np.arange(columns) % ring].astype(np.int32)
        self.length = np.zeros(requests, np.int32)

    def __call__(self, turns: Sequence[Turn], extra_slots: int = 0) -> list[tuple[Array, Array] | None]:
        """Candidates ``[drafts, top k]`` and scores ``[drafts, top k, top k]`` of each request that wants drafts.

        Extra slots repeat the first one's rows, as an unused slot would: the graph must not be affected.
        """
        kept = [self._ingested(turn.taps) for turn in turns]
        results = self.session.run(self.feeds(turns, extra_slots))
        take_ranges(results, self.largest)
        self.results = results
        self.length = self.length + np.array([len(rows) for rows in kept], np.int32)
        slots = iter(zip(results["draft_candidate_ids"], results["draft_scores"], strict=True))
        return [next(slots) if turn.anchor is not None else None for turn in turns]

    def feeds(self, turns: Sequence[Turn], extra_slots: int = 0) -> dict[str, Array]:
        """The graph's inputs for them, besides the caches. Context rows that no block can see are skipped."""
        drafted = [turn.anchor for turn in turns if turn.anchor is not None]
        taps = [self._ingested(turn.taps) for turn in turns]
        self.length += np.array([len(turn.taps) - len(kept) for turn, kept in zip(turns, taps, strict=True)], np.int32)
        qkv, index, cumulative = self._rows(turns, taps, len(drafted) + extra_slots)
        index += index[: self.block] * extra_slots
        counts = np.diff(cumulative)
        total = self.length + counts
        feeds = {
            "aux_hidden_states": np.concatenate(taps).astype(np.float32),
            "input_ids": np.concatenate([self._block(anchor) for anchor in drafted + [drafted[0]] * extra_slots]),
            "qkv_row_map": np.array(qkv, np.int32),
            "block_row_index": np.array(index, np.int32),
            "cumulative_sequence_lengths": np.array(cumulative, np.int32),
            "past_sequence_lengths": self.length,
            "block_table": self.tables,
            "attention_metadata": np.array([counts.max(), total.max(), total.min()], np.int32),
        }
        if "q_row_map" in self.inputs:  # in other tools' graphs: the block row whose query a row gets
            feeds["q_row_map"] = self._query_rows(qkv, cumulative, len(drafted) + extra_slots)
        return feeds

    def _query_rows(self, qkv: list[int], cumulative: list[int], slots: int) -> Array:
        """Block rows get their own query; a context row any of its request's block, or the first if it has none."""
        rows = []
        for start, stop in pairwise(cumulative):
            own = next((row for row in qkv[start:stop] if row < slots * self.block), 0)
            rows += [row if row < slots * self.block else own for row in qkv[start:stop]]
        return np.array(rows, np.int32)

    def _ingested(self, taps: Array) -> Array:
        return taps if self.window is None else taps[-ingested(self.window, self.block) :]

    def _block(self, anchor: int) -> Array:
        return np.array([anchor] + [self.mask] * (self.block - 1), np.int64)

    def _rows(self, turns: Sequence[Turn], taps: list[Array], slots: int) -> tuple[list[int], list[int], list[int]]:
        """The two row maps, and where each request's rows begin."""
        qkv: list[int] = []
        index: list[int] = []
        cumulative, context, slot = [0], slots * self.block, 0
        for turn, kept in zip(turns, taps, strict=True):
            qkv += range(context, context + len(kept))
            context += len(kept)
            if turn.anchor is not None:
                index += range(len(qkv), len(qkv) + self.block)
                qkv += range(slot * self.block, (slot + 1) * self.block)
                slot += 1
            cumulative.append(len(qkv))
        return qkv, index, cumulative
