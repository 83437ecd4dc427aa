"""Running a dense export in onnxruntime, its state carried from call to call."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from draftsmith.validation.ranges import take_ranges
from draftsmith.validation.session import CPU, Array, Place, Session


class DenseSession:
    """An export's graph in onnxruntime, its state carried from call to call.

    Attributes:
        largest: The largest magnitudes of a graph with ranges, by place.
    """

    def __init__(self, graph: Path, batch: int, place: Place = CPU) -> None:
        self.session = Session(graph, place)
        self.largest: dict[str, float] = {}
        self.length = 0
        sizes = {"batch_size": batch, "past_sequence_length": 0}
        for name, value in self.session.inputs.items():
            if name.startswith("past"):
                self.session.put(name, np.zeros([sizes.get(size, size) for size in value.shape], np.float32))

    def __call__(self, ids: Array) -> dict[str, Array]:
        """Run ``[batch, new]`` tokens; returns the outputs that are not states."""
        self.length += ids.shape[1]
        mask = np.ones((len(ids), self.length), np.int64)
        results = self.session.run({"input_ids": ids.astype(np.int64), "attention_mask": mask})
        take_ranges(results, self.largest)
        return results
