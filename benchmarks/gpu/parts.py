"""Time the graphs of an export by themselves: parts.py EXPORT on|off PROMPT COUNT, for CUDA graphs on or off.

After PROMPT tokens: one row of the target (decoding), eight rows (verification of seven drafts, states captured), and a
block of the drafter after eight new context rows. What the Engine does around them is not in these times. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.engine import DRAFTERS, summary
from benchmarks.gpu.plan import DRAFTS
from draftsmith.cuda_runtime import check_cuda

Json = dict[str, Any]


def main() -> None:
    """Time them and print.

    Raises:
        ExportError: No export can run here.
    """
    check_cuda()
    from draftsmith.validation.draft_session import DraftSession, Turn
    from draftsmith.validation.packed_session import PackedSession
    from draftsmith.validation.session import Place

    export, graphs = Path(sys.argv[1]), sys.argv[2] == "on"
    prompt, count = map(int, sys.argv[3:5])
    model = json.loads((export / "genai_config.json").read_text(encoding="utf-8"))["model"]
    cuda = ("CUDAExecutionProvider", {"enable_cuda_graph": str(int(graphs))})
    place = Place((cuda, "CPUExecutionProvider"), "cuda")  # the other builder's graphs have nodes for the CPU
    rng = np.random.default_rng(0)
    results: Json = {}
    file = export / model["decoder"]["filename"]
    session = PackedSession(file, 1, place=place)
    session.past[:] = prompt
    for graph, (name, rows, drafts) in enumerate((("decoding", 1, 0), ("verification", DRAFTS + 1, DRAFTS)), 1):
        feeds = session.feeds([rng.integers(10, 400, rows)])
        if drafts:
            feeds |= {"state_update_capture_count": np.array([drafts], np.int32)}
            feeds |= {"state_update_active": np.ones(1, np.int32)}
        results[name] = summary(session.session.times(feeds, count, graph))
    del session  # its memory is free for the drafter's
    role = next(role for role in DRAFTERS if role in model)
    section = model[role]
    window = section["sliding_window"] if section.get("sliding_window", -1) > 0 else None
    block, mask = section["block_size"], section["mask_token_id"]
    drafter = DraftSession(export / section["filename"], 1, block, mask, window, place=place)
    drafter.length[:] = prompt
    taps = rng.standard_normal((DRAFTS + 1, drafter.inputs["aux_hidden_states"].shape[-1]), np.float32)
    results["drafting"] = summary(drafter.session.times(drafter.feeds([Turn(taps, 20)]), count))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
