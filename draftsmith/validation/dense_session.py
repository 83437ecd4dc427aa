"""Running a widened dense export in onnxruntime, its state carried from call to call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from draftsmith.validation.packed_session import CPU, Array
from draftsmith.validation.ranges import take_ranges


class DenseSession:
    """An export's graph in onnxruntime, its state carried from call to call.

    Attributes:
        largest: The largest magnitudes of a graph with ranges, by place.
    """

    def __init__(self, graph: Path, batch: int, providers: Sequence[str] = CPU) -> None:
        self.session = ort.InferenceSession(graph, providers=list(providers))
        self.largest: dict[str, float] = {}
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.length = 0
        self.state = {
            value.name: np.zeros(
                [{"batch_size": batch, "past_sequence_length": 0}.get(dim, dim) for dim in value.shape], np.float32
            )
            for value in self.session.get_inputs()
            if value.name.startswith("past")
        }

    def __call__(self, ids: Array) -> dict[str, Array]:
        """Run ``[batch, new]`` tokens; gives the outputs that are not states."""
        self.length += ids.shape[1]
        mask = np.ones((len(ids), self.length), np.int64)
        values = self.session.run(None, {"input_ids": ids.astype(np.int64), "attention_mask": mask} | self.state)
        results = dict(zip(self.outputs, values, strict=True))
        take_ranges(results, self.largest)
        for name in list(results):
            if name.startswith("present"):
                past = "past_key_values" if name.endswith(("key", "value")) else "past"
                self.state[name.replace("present", past)] = results.pop(name)
        return results
