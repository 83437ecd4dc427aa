"""Checks of the target: logits and taps of the lowered graph against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from draftsmith.validation.dense_session import DenseSession
from draftsmith.validation.packed_session import Array, PackedSession
from draftsmith.validation.ranges import in_order, with_ranges
from draftsmith.verify.checks import Check, Results, Verdict, Worst
from draftsmith.verify.folder import ExportFolder, Graph
from draftsmith.verify.running import Running
from draftsmith.verify.sources import Target

# Tokens of the two requests: a prompt in chunks, one of which crosses a page of 256, then token by token.
_LENGTHS, _STEPS = (296, 17), 8
_DENSE, _SINGLY = 80, 16

_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895314e38, ir.DataType.FLOAT: 3.4028235e38}

# A run's taps and the streams at the same tokens, for each run and request.
_Rows = list[tuple[Array, list[Array]]]


def relative(got: Array, wanted: Array) -> float:
    """The largest difference, over the largest value where that is above 1; infinite where one is not a number."""
    if got.shape != wanted.shape or not (np.isfinite(got).all() and np.isfinite(wanted).all()):
        return float("inf")
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def random_ids(vocab: int, seed: int, length: int) -> Array:
    """Token ids from anywhere in the vocabulary."""
    return np.random.default_rng(seed).integers(0, vocab, length)


def check_target(
    export: ExportFolder, running: Running, target: Target, taps: Sequence[int], results: Results
) -> None:
    """Logits of every run, each tap at its own layer, and the range of every layer's values."""
    if export.context < 2:
        results.incomplete("logits", f"not compared: a context of {export.context} has no room for a run")
        return
    run = _run_packed if export.packed else _run_dense
    logits, rows, largest = run(export, running, target)
    what = f"against transformers {_version()}, prompt in chunks, then token by token"
    results.compared("logits", what, logits, running.limit)
    tell_ranges("ranges", activation_type(export.decoder), largest, results)
    if taps:
        _check_taps(rows, taps, running.limit, results)
    elif export.taps:
        results.incomplete("taps", "not compared: nothing says which layers they are")


def activation_type(graph: Graph) -> ir.DataType:
    """The type that a graph's activations have: that of its caches."""
    caches = (v.dtype for v in graph.model.graph.inputs if str(v.name).startswith("past_key_values"))
    return next(caches, None) or ir.DataType.FLOAT


def tell_ranges(name: str, dtype: ir.DataType, largest: dict[str, float], results: Results) -> None:
    """Note the largest value of each layer; it fails where one is beyond what the export's type holds."""
    worst, rows = Worst(), list(in_order(largest))
    for _, value in rows:
        worst.add(value)
    places = ", ".join(f"{place} {value:.3g}" for place, value in rows)
    results.figures[name] = rows
    results.compared(name, f"the largest value that each layer holds in {dtype.name.lower()}: {places}", worst, _LARGEST[dtype])


def chunks(length: int, steps: int) -> list[int]:
    """A length as two chunks of a prompt and single tokens, ``steps`` in all; fewer where it is short."""
    singles = max(0, min(steps, length) - 2)
    prompt = length - singles
    return [*(part for part in (prompt * 2 // 3, prompt - prompt * 2 // 3) if part), *[1] * singles]


def _run_packed(export: ExportFolder, running: Running, target: Target) -> tuple[Worst, _Rows, dict[str, float]]:
    page = export.config.get("engine", {}).get("dynamic_batching", {}).get("block_size", 256)
    lengths = [min(length, export.context) for length in _LENGTHS]
    steps = list(zip(*(chunks(length, min(_STEPS, *lengths)) for length in lengths), strict=True))
    pages = 2 * -(-max(lengths) // page) + 4
    file = running.folder / export.decoder.path.name
    graph = with_ranges(file, export.decoder.model.graph, activation_type(export.decoder))
    session = PackedSession(graph, 2, pages, page, running.providers)
    pruned = "logits_indices" in session.inputs
    vocab = target.config.vocab_size
    sequences = [target.expected(random_ids(vocab, seed, length)) for seed, length in zip((1, 2), lengths, strict=True)]
    worst, rows, at = Worst(), [], [0, 0]
    for counts in steps:
        starts, at = at, [start + n for start, n in zip(at, counts, strict=True)]
        results = session([s.ids[a:b] for s, a, b in zip(sequences, starts, at, strict=True)])
        for request, (sequence, a, b) in enumerate(zip(sequences, starts, at, strict=True)):
            wanted = sequence.logits[b - 1 : b] if pruned else sequence.logits[a:b]
            worst.add(relative(results["logits"][request], wanted))
            if "aux_hidden_states" in results:
                rows.append((results["aux_hidden_states"][request], [stream[a:b] for stream in sequence.streams]))
    return worst, rows, session.largest


def _run_dense(export: ExportFolder, running: Running, target: Target) -> tuple[Worst, _Rows, dict[str, float]]:
    file = running.folder / export.decoder.path.name
    graph = with_ranges(file, export.decoder.model.graph, activation_type(export.decoder))
    session = DenseSession(graph, 1, running.providers)
    length = min(_DENSE, export.context)
    singles = min(_SINGLY, length // 2)
    sequence = target.expected(random_ids(target.config.vocab_size, 1, length))
    worst, rows, start = Worst(), [], 0
    for count in [length - singles] + [1] * singles:
        results = session(sequence.ids[None, start : start + count])
        end = start + count
        got = results["logits"][0]
        worst.add(relative(got, sequence.logits[end - len(got) : end]))
        if "aux_hidden_states" in results:
            rows.append((results["aux_hidden_states"][0], [stream[start:end] for stream in sequence.streams]))
        start = end
    return worst, rows, session.largest


def _check_taps(rows: _Rows, taps: Sequence[int], limit: float, results: Results) -> None:
    """Each tap against the stream that it should be, and how far its neighbours are from it."""
    figures: list[dict[str, Any]] = []
    for place, tap in enumerate(taps):
        distances: list[float] = []
        for stream in range(len(rows[0][1]) if rows else 0):
            width = rows[0][1][stream].shape[-1]
            part = slice(place * width, (place + 1) * width)
            distances.append(max(relative(got[:, part], streams[stream]) for got, streams in rows))
        nearest = int(np.argmin(distances)) if distances else -1
        figures.append({"tap": tap, "distances": distances, "nearest": nearest})
        if not distances or tap >= len(distances):
            results.add(Check(f"tap {tap}", "the graph has no such tap", Verdict.FAILED))
            continue
        around = [f"{_layer(n)} {distances[n]:.1e}" for n in (tap - 1, tap + 1) if n < len(distances)]
        what = f"the output of {_layer(tap)} (neighbours are at {', '.join(around)})"
        if nearest != tap:
            what = f"should be the output of {_layer(tap)}, is nearest to that of {_layer(nearest)}"
        results.compared(f"tap {tap}", what, Worst(distances[tap]), limit)
    if rows and rows[0][0].shape[-1] != len(taps) * rows[0][1][0].shape[-1]:
        found = rows[0][0].shape[-1] / rows[0][1][0].shape[-1]
        results.add(Check("taps", f"{found:g} streams are put out, {len(taps)} are read", Verdict.FAILED))
    results.figures["taps"] = figures


def _layer(stream: int) -> str:
    """Whose output a stream is."""
    return f"layer {stream - 1}" if stream else "the embedding"


def _version() -> str:
    import transformers

    return str(transformers.__version__)
