"""Running a lowered packed export in onnxruntime as the Engine does: packed requests, paged caches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from draftsmith.validation.ranges import take_ranges

CPU = ("CPUExecutionProvider",)

Array = np.ndarray[Any, Any]


class PackedSession:
    """Several requests over one pool of pages. Pages are handed out in a shuffled order, and hold garbage at first.

    Attributes:
        largest: The largest magnitudes of a graph with ranges, by place.
    """

    def __init__(
        self, graph: Path, requests: int, pages: int = 12, page: int = 256, providers: Sequence[str] = CPU
    ) -> None:
        self.session = ort.InferenceSession(graph, providers=list(providers))
        self.largest: dict[str, float] = {}
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [output.name for output in self.session.get_outputs()]
        rng = np.random.default_rng(0)
        self.free = rng.permutation(pages).tolist()
        self.tables: list[list[int]] = [[] for _ in range(requests)]
        self.past = np.zeros(requests, np.int32)
        self.state: dict[str, Array] = {}
        for name, value in self.inputs.items():
            if name.startswith("past_key_values"):
                self.page = value.shape[1] if isinstance(value.shape[1], int) else page  # a graph may leave it open
                self.state[name] = rng.standard_normal([pages, self.page, *value.shape[2:]], np.float32)
            elif name.startswith("past."):
                self.state[name] = np.zeros([requests, *value.shape[1:]], np.float32)

    def __call__(self, rows: Sequence[Array]) -> dict[str, list[Array]]:
        """Run each request's new tokens (``[n]`` each, at least one); gives logits and the rest, split by request."""
        counts = np.array([len(row) for row in rows], np.int32)
        cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        total = self.past + counts
        feeds = {
            "input_ids": np.concatenate(rows).astype(np.int64),
            "cumulative_sequence_lengths": cumulative,
            "past_sequence_lengths": self.past,
            "block_table": self._block_table(total),
            "attention_metadata": np.array([counts.max(), total.max(), total.max()], np.int32),
        }
        if "position_ids" in self.inputs:  # of other tools' graphs; for text all three rows are the same
            positions = np.concatenate([np.arange(a, b) for a, b in zip(self.past, total, strict=True)])
            feeds["position_ids"] = (
                np.tile(positions, (3, 1)) if len(self.inputs["position_ids"].shape) == 2 else positions
            )
        if "logits_indices" in self.inputs:
            feeds["logits_indices"] = cumulative[1:] - 1
        if "state_update_active" in self.inputs:
            feeds["state_update_capture_count"] = np.zeros(len(rows), np.int32)
            feeds["state_update_active"] = np.zeros(1, np.int32)
        results = dict(zip(self.outputs, self.session.run(None, feeds | self.state), strict=True))
        take_ranges(results, self.largest)
        self.past = total
        return self._split(results, cumulative, len(rows))

    def _split(self, results: dict[str, Array], cumulative: Array, count: int) -> dict[str, list[Array]]:
        given = {}
        for name, value in results.items():
            if name.startswith("present"):
                past = "past_key_values" if name.endswith(("key", "value")) else "past"
                self.state[name.replace("present", past)] = value
            elif not name.startswith("state_update"):
                by_row = len(value) == cumulative[-1] and (name != "logits" or "logits_indices" not in self.inputs)
                given[name] = np.split(value, cumulative[1:-1]) if by_row else np.split(value, count)
        return given

    def _block_table(self, total: Array) -> Array:
        for table, length in zip(self.tables, total, strict=True):
            while len(table) * self.page < length:
                table.append(self.free.pop())
        width = max(map(len, self.tables))
        return np.array([table + [-1] * (width - len(table)) for table in self.tables], np.int32)
