"""Runs an export on the stand-in device: runner.py graphs|engine|load|all FOLDER [JSON]

Executed by the interpreter of the device's environment, so it imports nothing of the project. Prints one JSON value,
the last line of its output.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]
Feeds = dict[str, np.ndarray[Any, Any]]
DRAFTERS = ("dflash2", "dspark")
CACHE = re.compile(r"past_key_values\.(\d+)\.(key|value)")
PADDING = 2  # pages that no request has
MAX_STEPS = 400

# Numbers of ONNX's element types, which is how onnxruntime names those that numpy lacks.
ELEMENT_TYPES = {
    "tensor(float)": 1,
    "tensor(int8)": 3,
    "tensor(uint8)": 2,
    "tensor(int32)": 6,
    "tensor(int64)": 7,
    "tensor(float16)": 10,
    "tensor(bfloat16)": 16,
    "tensor(float8e4m3fn)": 17,
}


def mark(name: str) -> None:
    """Write a mark into the device's log."""
    ctypes.CDLL("libcudart.so.13").standin_mark(name.encode())


class Graph:
    """A graph in a plain session on the device, all of whose nodes must be there."""

    def __init__(self, path: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        self.ort = ort
        self.session = ort.InferenceSession(path, options, providers=["CUDAExecutionProvider"])
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.outputs = [node.name for node in self.session.get_outputs()]

    @property
    def page(self) -> int:
        """Tokens in a page of the cache."""
        return int(next(node.shape[1] for name, node in self.inputs.items() if CACHE.fullmatch(name)))

    def run(self, feeds: Feeds, host: set[str], sizes: dict[str, int]) -> None:
        """Run once.

        Args:
            feeds: Values of inputs; an input that is not among them is a state or a cache, and is zero.
            host: Names of the inputs that stay in the host's memory.
            sizes: The sizes that symbolic dimensions of the remaining inputs have.
        """
        binding = self.session.io_binding()
        values = []  # the binding does not keep them
        bound = set()
        for name, node in self.inputs.items():
            if name in feeds:
                device = "cpu" if name in host else "cuda"
                value = self.ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(feeds[name]), device, 0)
            else:
                shape = [sizes.get(size, size) for size in node.shape]
                value = self.ort.OrtValue.ortvalue_from_shape_and_type(shape, ELEMENT_TYPES[node.type], "cuda", 0)
            values.append(value)
            binding.bind_ortvalue_input(name, value)
            if CACHE.fullmatch(name):  # caches are written in place
                bound.add(CACHE.sub(r"present.\1.\2", name))
                binding.bind_ortvalue_output(CACHE.sub(r"present.\1.\2", name), value)
        for name in self.outputs:
            if name not in bound:
                binding.bind_output(name, "cuda")
        self.session.run_with_iobinding(binding)


def starts(lengths: list[int]) -> np.ndarray[Any, Any]:
    """Where each request's rows begin, and where the last one's end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def run_target(graph: Graph, lengths: list[int], past: list[int], drafts: list[int]) -> None:
    """One step of the packed target, as the Engine feeds it: ``lengths`` rows of each request after ``past`` tokens."""
    requests, totals = len(lengths), [before + own for before, own in zip(past, lengths, strict=True)]
    columns = -(-max(totals) // graph.page)
    ends = starts(lengths)
    feeds: Feeds = {
        "input_ids": np.arange(ends[-1], dtype=np.int64) % 500,
        "block_table": np.arange(requests * columns, dtype=np.int32).reshape(requests, columns),
        "cumulative_sequence_lengths": ends,
        "past_sequence_lengths": np.array(past, np.int32),
        "attention_metadata": np.array([max(lengths), max(totals), max(totals)], np.int32),
        "logits_indices": (ends[1:] - 1).astype(np.int32),
        "state_update_capture_count": np.array(drafts, np.int32),
        "state_update_active": np.array([int(any(drafts))], np.int32),
    }
    sizes = {"num_blocks": requests * columns + PADDING, "batch_size": requests}
    graph.run(feeds, {"attention_metadata", "state_update_active"}, sizes)


def run_drafter(graph: Graph, section: Json, context: list[int], past: list[int]) -> None:
    """One proposal of a drafter: a block of each request after ``context`` new rows of the target's taps."""
    requests, block = len(context), int(section["block_size"])
    rows = [new + block for new in context]
    ends = starts(rows)
    totals = [before + own for before, own in zip(past, rows, strict=True)]
    columns, window = -(-max(totals) // graph.page), int(section.get("sliding_window") or -1)
    ring = columns if window <= 0 else min(columns, -(-(window + 2 * block) // graph.page) + 1)
    table = [[request * ring + column % ring for column in range(columns)] for request in range(requests)]
    own_rows: list[int] = []
    all_rows: list[int] = []
    first_context = starts(context) + requests * block  # context rows come behind the blocks of all requests
    for request, new in enumerate(context):
        own_rows += range(ends[request] + new, ends[request + 1])
        all_rows += [*range(first_context[request], first_context[request] + new)]
        all_rows += range(request * block, (request + 1) * block)
    feeds: Feeds = {
        "input_ids": np.zeros(requests * block, np.int64),
        "qkv_row_map": np.array(all_rows, np.int32),
        "block_row_index": np.array(own_rows, np.int32),
        "cumulative_sequence_lengths": ends,
        "past_sequence_lengths": np.array(past, np.int32),
        "block_table": np.array(table, np.int32),
        "attention_metadata": np.array([max(rows), max(totals), min(totals)], np.int32),
    }
    graph.run(feeds, {"attention_metadata"}, {"num_blocks": requests * ring, "context_rows": sum(context)})


# Rows, past tokens and drafts of each request.
TARGET_STEPS: list[tuple[str, list[int], list[int], list[int]]] = [
    ("prompt, decode and verification", [300, 1, 8], [0, 400, 513], [0, 0, 7]),
    ("decode", [1, 1], [5, 4000], [0, 0]),
    ("verification", [8, 8], [5, 4000], [7, 7]),
]
# Context rows and past tokens of each request.
DRAFTER_STEPS: list[tuple[str, list[int], list[int]]] = [
    ("prompt and round", [300, 3], [0, 2500]),
    ("round", [1], [3900]),
]


def graphs(folder: Path, options: Json) -> Json:
    """Run each graph of an export alone, in all kinds of steps."""
    config = json.loads((folder / "genai_config.json").read_text())["model"]
    mark("load target")
    target = Graph(folder / config["decoder"]["filename"])
    verifies = "state_update_active" in target.inputs
    for name, lengths, past, drafts in TARGET_STEPS:
        mark(f"target: {name}")
        run_target(target, lengths, past, drafts if verifies else [0] * len(drafts))
    found = [kind for kind in DRAFTERS if kind in config]
    for kind in found:
        mark(f"load {kind}")
        drafter = Graph(folder / config[kind]["filename"])
        for name, context, past in DRAFTER_STEPS:
            mark(f"{kind}: {name}")
            run_drafter(drafter, config[kind], context, past)
    mark("end")
    return {"graphs": ["target", *found]}


def engine(folder: Path, options: Json) -> Json:
    """Decode in the Engine, a mark before each of its steps.

    Options: ``prompts``, the number of tokens of each; ``tokens``, how many to decode; ``overlay``, changes of the
    configuration.
    """
    import onnxruntime_genai as og

    mark("load")
    config = og.Config(str(folder))
    if options.get("overlay"):
        config.overlay(json.dumps(options["overlay"]))
    running = og.Engine(og.Model(config))
    requests = [_begin(og, running, length, options["tokens"]) for length in options["prompts"]]
    tokens = [0] * len(requests)
    events = running.create_event_buffer(64)
    steps = 0
    while running.has_pending_requests():
        steps += 1
        if steps > MAX_STEPS:
            raise RuntimeError(f"the Engine has not ended after {sum(tokens)} tokens")
        mark(f"step {steps}")
        for event in running.run(events):
            flags = int(event.flags)
            if flags & int(og.EngineEventFlags.FAILED):
                raise RuntimeError(f"the Engine failed: {event.error_code}")
            if flags & int(og.EngineEventFlags.TOKEN):
                tokens[next(i for i, request in enumerate(requests) if request is event.request)] += 1
            if flags & int(og.EngineEventFlags.TURN_FINISHED):
                event.request.close()
    mark("end")
    statistics = dict(running.get_speculative_stats())
    return {
        "steps": steps,
        "tokens": tokens,
        "drafts per proposal": running.max_draft_tokens_per_proposal(),
        "drafts": int(statistics["draft_tokens_proposed"]),
        "accepted lengths": list(statistics.get("acceptance_length_histogram", [])),
    }


def _begin(og: Any, running: Any, length: int, tokens: int) -> Any:
    request = running.create_request()
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(tokens)
    request.begin_turn(np.arange(length, dtype=np.int32) % 400 + 10, options)
    return request


def load(folder: Path, options: Json) -> Json:
    """What the CPU provider says of each graph: nothing, or the kind of its refusal."""
    import onnxruntime as ort

    said: Json = {}
    for path in sorted(folder.glob("*.onnx")):
        session_options = ort.SessionOptions()
        session_options.log_severity_level = 4
        try:
            ort.InferenceSession(path, session_options, providers=["CPUExecutionProvider"])
        except Exception as error:
            said[path.name] = {"error": type(error).__name__, "message": str(error)}
        else:
            said[path.name] = None
    return said


def everything(folder: Path, options: Json) -> Json:
    """All three."""
    return {"cpu": load(folder, {})} | graphs(folder, {}) | engine(folder, options)


TASKS: dict[str, Callable[[Path, Json], Json]] = {"graphs": graphs, "engine": engine, "load": load, "all": everything}

if __name__ == "__main__":
    task, folder, *rest = sys.argv[1:]
    print(json.dumps(TASKS[task](Path(folder), json.loads(rest[0]) if rest else {})))
