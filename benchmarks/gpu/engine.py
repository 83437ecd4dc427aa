"""Time the Engine on an export: engine.py EXPORT on|off PROMPT STEPS WARM, for CUDA graphs on or off. Prints JSON.

One request. Each call of the Engine's ``run`` is a step: without the drafter it decodes a token, with it a step
verifies the drafts of the one before and makes the next. What is timed begins after WARM steps, when the runtime has
tried its kernels out and recorded its graphs. The export's files are not touched.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.plan import DRAFTS
from draftsmith.cuda_runtime import check_cuda

Json = dict[str, Any]
DRAFTERS = ("dflash2", "dspark")
PAGES = 64  # of 256 tokens: far more than a run has
NEVER = 1  # a stop id that random weights hardly choose


def configured(export: Path, folder: Path, graphs: bool, drafts: bool) -> Path:
    """A folder with links to an export's files, and its configuration changed so that both builders' run alike."""
    folder.mkdir()
    for path in export.iterdir():
        if path.is_file() and path.name != "genai_config.json":
            (folder / path.name).symlink_to(path.resolve())
    config = json.loads((export / "genai_config.json").read_text(encoding="utf-8"))
    model = config["model"]
    model["eos_token_id"] = [NEVER]
    for role in DRAFTERS:
        if not drafts:
            model.pop(role, None)
    for role in ("decoder", *DRAFTERS):
        if role in model:
            options = model[role].setdefault("session_options", {})
            options["provider_options"] = [{"cuda": {"enable_cuda_graph": str(int(graphs))}}]
    config["speculative"] = config.get("speculative", {}) | {"max_draft_tokens": DRAFTS}
    batching = config["engine"]["dynamic_batching"]
    batching.pop("gpu_utilization_factor", None)
    batching |= {"num_blocks": PAGES, "max_batch_size": 1}
    (folder / "genai_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def steps(engine: Any, og: Any, prompt: int, count: int) -> Iterator[tuple[float, int]]:
    """Seconds of each step, and the tokens that it gave.

    Raises:
        RuntimeError: The Engine fails.
    """
    request = engine.create_request()
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(count)
    request.begin_turn(np.arange(prompt, dtype=np.int32) % 400 + 10, options)
    events = engine.create_event_buffer(64)
    while engine.has_pending_requests():
        start, tokens = time.perf_counter(), 0
        for event in engine.run(events):
            flags = int(event.flags)
            if flags & int(og.EngineEventFlags.FAILED):
                raise RuntimeError(f"the Engine failed: {event.error_code}")
            tokens += bool(flags & int(og.EngineEventFlags.TOKEN))
            if flags & int(og.EngineEventFlags.TURN_FINISHED):
                event.request.close()
        yield time.perf_counter() - start, tokens


def timed(folder: Path, prompt: int, count: int, warm: int, drafts: bool) -> Json:
    """Run one kind of step.

    Raises:
        RuntimeError: There were too few steps to time.
    """
    import onnxruntime_genai as og

    start = time.perf_counter()
    engine = og.Engine(og.Model(og.Config(str(folder))))
    load = time.perf_counter() - start
    wanted = 1 + warm + count  # the first token is the prompt's, which comes in chunks
    most = (wanted + 1) * (DRAFTS + 1 if drafts else 1)  # every draft may be accepted
    taken = list(islice((step for step in steps(engine, og, prompt, most) if step[1]), wanted))
    steady = taken[1 + warm :]
    if not steady:
        raise RuntimeError(f"the Engine ended after {len(taken)} steps, {warm} of which are to warm up")
    spent, tokens = sum(seconds for seconds, _ in steady), sum(tokens for _, tokens in steady)
    result = summary([seconds for seconds, _ in steady])
    result |= {"load_s": round(load, 2), "tokens": tokens, "tokens_per_s": round(tokens / spent, 2)}
    if drafts:
        said = dict(engine.get_speculative_stats())
        result["drafts_proposed"] = int(said["draft_tokens_proposed"])
        result["accepted_lengths"] = list(said.get("acceptance_length_histogram", []))
        result["drafts_per_proposal"] = engine.max_draft_tokens_per_proposal()
        if not result["drafts_proposed"]:
            raise RuntimeError("the Engine has asked for no drafts")
    return result


def summary(seconds: list[float]) -> Json:
    """The median of some times, and how far they spread, in milliseconds."""
    tenths = statistics.quantiles(seconds, n=10) if len(seconds) > 1 else [seconds[0]] * 9
    numbers = {"median_ms": statistics.median(seconds), "p10_ms": tenths[0], "p90_ms": tenths[-1]}
    return {name: round(1000 * value, 4) for name, value in numbers.items()} | {"count": len(seconds)}


def main() -> None:
    """Time plain steps and rounds, and print them.

    Raises:
        ExportError: No export can run here.
    """
    export, graphs = Path(sys.argv[1]), sys.argv[2] == "on"
    prompt, count, warm = map(int, sys.argv[3:6])
    check_cuda()
    results = {}
    with tempfile.TemporaryDirectory(prefix="draftsmith-engine-") as work:
        for name, drafts in (("plain step", False), ("round", True)):
            folder = configured(export, Path(work) / name.split()[0], graphs, drafts)
            results[name] = timed(folder, prompt, count, warm, drafts)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
