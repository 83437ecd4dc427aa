"""Running a packed export in onnxruntime as the Engine does: packed requests, paged caches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from draftsmith.validation.ranges import take_ranges
from draftsmith.validation.session import CPU, Array, Place, Session


class PackedSession:
    """Several requests over one pool of pages. Pages are handed out in a shuffled order, and hold garbage at first.

    Attributes:
        largest: The largest magnitudes of a graph with ranges, by place.
    """

    def __init__(
        self,
        graph: Path,
        requests: int,
        pages: int = 12,
        page: int = 256,
        place: Place = CPU,
    ) -> None:
        self.session = Session(graph, place, paged=True)
        self.largest: dict[str, float] = {}
        self.inputs = self.session.inputs
        rng = np.random.default_rng(0)
        self.free = rng.permutation(pages).tolist()
        self.tables: list[list[int]] = [[] for _ in range(requests)]
        self.past = np.zeros(requests, np.int32)
        for name, value in self.inputs.items():
            if name.startswith("past_key_values"):
                self.page = value.shape[1] if isinstance(value.shape[1], int) else page  # a graph may leave it open
                self.session.put(name, rng.standard_normal([pages, self.page, *value.shape[2:]], np.float32))
            elif name.startswith("past."):
                self.session.put(name, np.zeros([requests, *value.shape[1:]], np.float32))

    def __call__(self, rows: Sequence[Array]) -> dict[str, list[Array]]:
        """Run each request's new tokens (``[n]`` each, at least one); returns logits and the rest, split by request."""
        feeds = self.feeds(rows)
        results = self.session.run(feeds)
        take_ranges(results, self.largest)
        cumulative = feeds["cumulative_sequence_lengths"]
        self.past = self.past + np.diff(cumulative)
        return self._split(results, cumulative, len(rows))

    def feeds(self, rows: Sequence[Array]) -> dict[str, Array]:
        """The graph's inputs for them, besides the states."""
        counts = np.array([len(row) for row in rows], np.int32)
        cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        total = self.past + counts
        feeds: dict[str, Array] = {
            "input_ids": np.concatenate(rows).astype(np.int64),
            "cumulative_sequence_lengths": cumulative,
            "past_sequence_lengths": self.past,
            "block_table": self._block_table(total),
            "attention_metadata": np.array([counts.max(), total.max(), total.max()], np.int32),
        }
        if "position_ids" in self.inputs:  # in other tools' graphs; for text all three rows are the same
            positions = np.concatenate([np.arange(a, b) for a, b in zip(self.past, total, strict=True)])
            feeds["position_ids"] = (
                np.tile(positions, (3, 1)) if len(self.inputs["position_ids"].shape) == 2 else positions
            )
        if "logits_indices" in self.inputs:
            feeds["logits_indices"] = cumulative[1:] - 1
        if "state_update_active" in self.inputs:
            feeds["state_update_capture_count"] = np.zeros(len(rows), np.int32)
            feeds["state_update_active"] = np.zeros(1, np.int32)
        return feeds

    def _split(self, results: dict[str, Array], cumulative: Array, count: int) -> dict[str, list[Array]]:
        given = {}
        for name, value in results.items():
            by_row = len(value) == cumulative[-1] and (name != "logits" or "logits_indices" not in self.inputs)
            given[name] = np.split(value, cumulative[1:-1]) if by_row else np.split(value, count)
        return given

    def _block_table(self, total: Array) -> Array:
        for table, length in zip(self.tables, total, strict=True):
            while len(table) * self.page < length:
                table.append(self.free.pop())
        width = max(map(len, self.tables))
        return np.array([table + [-1] * (width - len(table)) for table in self.tables], np.int32)
