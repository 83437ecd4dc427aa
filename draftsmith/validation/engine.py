"""The real runtime's Engine on a lowered export: continuous batching, paged caches, drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

# Steps of the Engine for each requested token before it counts as stuck. Each token of a prompt may add one more,
# because a prompt comes in chunks of a size that the configuration sets.
_STEPS_PER_TOKEN = 8


@dataclass(frozen=True)
class EngineRun:
    """What the Engine gave.

    Attributes:
        tokens: The tokens after each prompt, in order.
        drafts_per_proposal: How many drafts the Engine would take at a time; 0 if a drafter is never used.
        statistics: The Engine's own counts of drafts.
    """

    tokens: list[list[int]]
    drafts_per_proposal: int
    statistics: Mapping[str, object]

    def count(self, name: str) -> int:
        """One of the Engine's counts, such as ``draft_tokens_proposed``."""
        return int(str(self.statistics[name]))

    def accepted_lengths(self) -> list[int]:
        """How often 0, 1, 2, ... drafts of a proposal were accepted."""
        histogram = self.statistics.get("acceptance_length_histogram", [])
        assert isinstance(histogram, list)
        return histogram


def run_engine(folder: Path, prompts: Sequence[Sequence[int]], count: int) -> EngineRun:
    """Decode all prompts at once, greedily, ``count`` tokens each or up to a stop id.

    Raises:
        RuntimeError: The Engine reports a failure, or makes no progress.
    """
    engine = og.Engine(og.Model(og.Config(str(folder))))
    requests = [_begin(engine, prompt, count) for prompt in prompts]
    tokens: list[list[int]] = [[] for _ in prompts]
    events = engine.create_event_buffer(64)
    left = _STEPS_PER_TOKEN * count * len(prompts) + sum(map(len, prompts))
    while engine.has_pending_requests():
        if left == 0:
            raise RuntimeError(f"the Engine has not ended after {sum(map(len, tokens))} tokens")
        left -= 1
        for event in engine.run(events):
            flags = int(event.flags)  # bits: the last token arrives together with the end of the turn
            if flags & int(og.EngineEventFlags.FAILED):
                raise RuntimeError(f"the Engine failed: {event.error_code}")
            if flags & int(og.EngineEventFlags.TOKEN):
                tokens[next(i for i, request in enumerate(requests) if request is event.request)].append(event.token)
            if flags & int(og.EngineEventFlags.TURN_FINISHED):
                event.request.close()  # an open one waits for another turn, and keeps its place in the batch
    return EngineRun(tokens, engine.max_draft_tokens_per_proposal(), dict(engine.get_speculative_stats()))


def _begin(engine: og.Engine, prompt: Sequence[int], count: int) -> og.Request:
    request = engine.create_request()
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(count)
    request.begin_turn(np.array(prompt, np.int32), options)
    return request
