"""Checks of the target: logits and taps of the lowered graph against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.validation.dense_session import DenseSession
from draftsmith.validation.packed_session import Array, PackedSession
from draftsmith.verify.checks import Check, Results, Verdict
from draftsmith.verify.folder import ExportFolder
from draftsmith.verify.sources import Target

LIMIT = 1e-5

# Tokens of two requests in each run: a prompt in chunks, one of which crosses a page of 256, then token by token.
_STEPS = [(200, 9), (90, 2)] + [(1, 1)] * 6


def relative(got: Array, wanted: Array) -> float:
    """The largest difference, over the largest value where that is above 1."""
    if got.shape != wanted.shape:
        return float("inf")
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def random_ids(vocab: int, seed: int, length: int) -> Array:
    """Token ids from anywhere in the vocabulary."""
    return np.random.default_rng(seed).integers(0, vocab, length)


def check_target(export: ExportFolder, low: Path, target: Target, taps: Sequence[int], results: Results) -> None:
    """Logits of every run, and each tap at its own layer."""
    if export.packed:
        logits, rows = _run_packed(export, low, target)
    else:
        logits, rows = _run_dense(export, low, target)
    what = f"against transformers {_version()}, prompt in chunks, then token by token"
    results.compared("logits", what, logits, LIMIT)
    if not taps:
        if export.taps:
            results.skipped("taps", "nothing says which layers they are")
        return
    _check_taps(rows, taps, results)


def _run_packed(export: ExportFolder, low: Path, target: Target) -> tuple[float, list[tuple[Array, list[Array]]]]:
    """The largest error of logits, and for each run and request its taps and the streams at the same tokens."""
    page = export.config.get("engine", {}).get("dynamic_batching", {}).get("block_size", 256)
    session = PackedSession(low / export.decoder.path.name, 2, page=page)
    pruned = "logits_indices" in session.inputs
    sequences = [
        target.expected(random_ids(target.config.vocab_size, seed, length)) for seed, length in ((1, 300), (2, 21))
    ]
    worst, rows, at = 0.0, [], [0, 0]
    for counts in _STEPS:
        starts, at = at, [start + n for start, n in zip(at, counts, strict=True)]
        results = session([s.ids[a:b] for s, a, b in zip(sequences, starts, at, strict=True)])
        for request, (sequence, a, b) in enumerate(zip(sequences, starts, at, strict=True)):
            wanted = sequence.logits[b - 1 : b] if pruned else sequence.logits[a:b]
            worst = max(worst, relative(results["logits"][request], wanted))
            if "aux_hidden_states" in results:
                rows.append((results["aux_hidden_states"][request], [stream[a:b] for stream in sequence.streams]))
    return worst, rows


def _run_dense(export: ExportFolder, low: Path, target: Target) -> tuple[float, list[tuple[Array, list[Array]]]]:
    session = DenseSession(low / export.decoder.path.name, 1)
    sequence = target.expected(random_ids(target.config.vocab_size, 1, 80))
    worst, rows, start = 0.0, [], 0
    for count in [64] + [1] * 16:
        results = session(sequence.ids[None, start : start + count])
        end = start + count
        got = results["logits"][0]
        worst = max(worst, relative(got, sequence.logits[end - len(got) : end]))
        if "aux_hidden_states" in results:
            rows.append((results["aux_hidden_states"][0], [stream[start:end] for stream in sequence.streams]))
        start = end
    return worst, rows


def _check_taps(rows: list[tuple[Array, list[Array]]], taps: Sequence[int], results: Results) -> None:
    """Each tap against the stream that it should be, and how far its neighbours are from it."""
    figures: list[dict[str, Any]] = []
    normed = len(rows[0][1]) - 1 if rows else 0
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
        named = [_layer(stream, normed) for stream in range(len(distances))]
        around = [f"{named[n]} {distances[n]:.1e}" for n in (tap - 1, tap + 1) if n < len(distances)]
        what = f"the output of {named[tap]} (neighbours are at {', '.join(around)})"
        if nearest != tap:
            what = f"should be the output of {named[tap]}, is nearest to that of {named[nearest]}"
        results.compared(f"tap {tap}", what, distances[tap], LIMIT)
    if rows and rows[0][0].shape[-1] != len(taps) * rows[0][1][0].shape[-1]:
        found = rows[0][0].shape[-1] / rows[0][1][0].shape[-1]
        results.add(Check("taps", f"{found:g} streams are put out, {len(taps)} are read", Verdict.FAILED))
    results.figures["taps"] = figures


def _layer(stream: int, normed: int) -> str:
    """Whose output a stream is; ``normed`` is the last one, the final norm's."""
    return "the final norm" if stream == normed else f"layer {stream - 1}" if stream else "the embedding"


def _version() -> str:
    import transformers

    return str(transformers.__version__)
