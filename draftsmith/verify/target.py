"""Checks of the target: logits and taps of the graph that runs against transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from draftsmith.validation.dense_session import DenseSession
from draftsmith.validation.packed_session import PackedSession
from draftsmith.validation.ranges import in_order, with_ranges
from draftsmith.validation.session import Array
from draftsmith.verify.checks import Check, Results, Verdict, Worst
from draftsmith.verify.folder import ExportFolder, Graph
from draftsmith.verify.running import Running
from draftsmith.verify.sources import Expected, Target
from genai_config.runtime import DEFAULT_PAGE

# Tokens of the two requests: a prompt in chunks, one of which crosses a page of 256, then token by token.
_LENGTHS, _STEPS = (296, 17), 8
_DENSE, _SINGLY = 80, 16

_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895314e38, ir.DataType.FLOAT: 3.4028235e38}


@dataclass(frozen=True)
class _Text:
    """What transformers computes for a text: in float32, and in 16 bits if the copy runs in 16 bits."""

    truth: Expected
    own: Expected | None


@dataclass(frozen=True)
class _Rows:
    """A run's taps, and the streams at the same tokens: the truth's, and those of PyTorch's own run in 16 bits."""

    got: Array
    truth: list[Array]
    own: list[Array]


@dataclass
class _Seen:
    """What the runs gave.

    Attributes:
        logits: The differences from the truth.
        own: Those of PyTorch's own run in 16 bits.
        rows: The taps.
        margins: For each row of logits, how far the truth's second token is behind the first, on the same scale as
            differences, and whether the run has the same first.
        largest: The largest values, by place.
    """

    logits: Worst = field(default_factory=Worst)
    own: Worst = field(default_factory=Worst)
    rows: list[_Rows] = field(default_factory=list)
    margins: list[tuple[float, bool]] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, text: _Text, tokens: slice, last: slice, logits: Array, taps: Array | None) -> None:
        """Note a run over some tokens of a text, which gave the logits of the last ones."""
        wanted = text.truth.logits[last]
        self.logits.add(relative(logits, wanted))
        if text.own is not None:
            self.own.add(relative(text.own.logits[last], wanted))
            self.margins += _margins(logits, wanted)
        if taps is not None:
            own = text.own.streams if text.own else []
            self.rows.append(_Rows(taps, *([s[tokens] for s in streams] for streams in (text.truth.streams, own))))

    def likeliest(self, limit: float) -> str:
        """How often the run's likeliest token is the truth's, in words."""
        sure = [same for margin, same in self.margins if margin > 2 * limit]
        same = sum(same for _, same in self.margins)
        return (
            f"the likeliest token is the same in {same} of {len(self.margins)} rows, and in {sum(sure)} of the "
            f"{len(sure)} in which no error within the limit can change it"
        )


def _margins(got: Array, wanted: Array) -> Iterator[tuple[float, bool]]:
    if got.shape != wanted.shape:
        return
    scale = max(1.0, float(np.abs(wanted).max()))
    second, first = np.partition(wanted, -2, axis=-1)[:, -2:].T
    same = got.argmax(-1) == wanted.argmax(-1)
    yield from zip(((first - second) / scale).tolist(), same.tolist(), strict=True)


def relative(got: Array, wanted: Array) -> float:
    """The largest difference, divided by the largest value if that is above 1; infinite if one is not a number."""
    if got.shape != wanted.shape or not (np.isfinite(got).all() and np.isfinite(wanted).all()):
        return float("inf")
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def typical(got: Array, wanted: Array) -> float:
    """The median difference over the median value: a few large values, whose rounding hides all else, do not count."""
    if got.shape != wanted.shape:
        return float("inf")
    return float(np.nan_to_num(np.median(np.abs(got - wanted)), nan=np.inf) / max(1e-30, np.median(np.abs(wanted))))


def random_ids(vocab: int, seed: int, length: int) -> Array:
    """Token ids from anywhere in the vocabulary."""
    return np.random.default_rng(seed).integers(0, vocab, length)


def check_target(export: ExportFolder, running: Running, target: Target, taps: Sequence[int], results: Results) -> None:
    """Logits of every run, each tap at its own layer, and the range of every layer's values."""
    if export.context < 2:
        results.incomplete("logits", f"not compared: a context of {export.context} has no room for a run")
        return
    run = _run_packed if export.packed else _run_dense
    seen = run(export, running, target)
    what = f"against transformers {_version()}, prompt in chunks, then token by token"
    limit = running.allows(seen.own.value)
    if running.rounds:
        what += f" ({own_error(seen.own)}; {seen.likeliest(limit)})"
    results.compared("logits", what, seen.logits, limit)
    if not running.rounds:  # in 16 bits, a value beyond the range is not a finite number, and shows up as such
        tell_ranges("ranges", activation_type(export.decoder), seen.largest, results)
    if taps:
        _check_taps(seen.rows, taps, running, results)
    elif export.taps:
        results.incomplete("taps", "not compared: nothing says which layers they come from")


def own_error(own: Worst) -> str:
    """The measure behind the limit, in words."""
    return "PyTorch's own run in 16 bits is " + ("nothing" if own.value is None else f"{own.value:.1e} off")


def texts(target: Target, lengths: Sequence[int], seeds: Sequence[int], rounds: bool) -> list[_Text]:
    """Random texts, and what transformers computes for them."""
    ids = [random_ids(target.config.vocab_size, seed, length) for seed, length in zip(seeds, lengths, strict=True)]
    return [_Text(target.expected(row), target.expected(row, rounded=True) if rounds else None) for row in ids]


def activation_type(graph: Graph) -> ir.DataType:
    """The type that a graph's activations have: that of its caches."""
    caches = (v.dtype for v in graph.model.graph.inputs if str(v.name).startswith("past_key_values"))
    return next(caches, None) or ir.DataType.FLOAT


def tell_ranges(name: str, dtype: ir.DataType, largest: dict[str, float], results: Results) -> None:
    """Note the largest value of each layer; fails if one is beyond the range of the export's type."""
    worst, rows = Worst(), list(in_order(largest))
    for _, value in rows:
        worst.add(value)
    places = ", ".join(f"{place} {value:.3g}" for place, value in rows)
    results.figures[name] = rows
    results.compared(
        name, f"the largest value that each layer holds in {dtype.name.lower()}: {places}", worst, _LARGEST[dtype]
    )


def chunks(length: int, steps: int) -> list[int]:
    """A length as two chunks of a prompt and single tokens, ``steps`` in all; fewer if it is short."""
    singles = max(0, min(steps, length) - 2)
    prompt = length - singles
    return [*(part for part in (prompt * 2 // 3, prompt - prompt * 2 // 3) if part), *[1] * singles]


def _graph_file(export: ExportFolder, running: Running) -> Path:
    """The target that runs. In float32 it also reports its ranges; in 16 bits it is the export's, unchanged."""
    file = running.folder / export.decoder.path.name
    if running.rounds:
        return file
    return with_ranges(file, export.decoder.model.graph, activation_type(export.decoder))


def _run_packed(export: ExportFolder, running: Running, target: Target) -> _Seen:
    page = export.config.get("engine", {}).get("dynamic_batching", {}).get("block_size", DEFAULT_PAGE)
    lengths = [min(length, export.context) for length in _LENGTHS]
    steps = list(zip(*(chunks(length, min(_STEPS, *lengths)) for length in lengths), strict=True))
    pages = 2 * -(-max(lengths) // page) + 4
    session = PackedSession(_graph_file(export, running), 2, pages, page, running.place)
    pruned = "logits_indices" in session.inputs
    requests = texts(target, lengths, (1, 2), running.rounds)
    seen, at = _Seen(largest=session.largest), [0, 0]
    for counts in steps:
        starts, at = at, [start + n for start, n in zip(at, counts, strict=True)]
        results = session([text.truth.ids[a:b] for text, a, b in zip(requests, starts, at, strict=True)])
        for request, (text, a, b) in enumerate(zip(requests, starts, at, strict=True)):
            last = slice(b - 1 if pruned else a, b)
            taps = results["aux_hidden_states"][request] if "aux_hidden_states" in results else None
            seen.add(text, slice(a, b), last, results["logits"][request], taps)
    return seen


def _run_dense(export: ExportFolder, running: Running, target: Target) -> _Seen:
    session = DenseSession(_graph_file(export, running), 1, running.place)
    length = min(_DENSE, export.context)
    singles = min(_SINGLY, length // 2)
    (text,) = texts(target, [length], (1,), running.rounds)
    seen, start = _Seen(largest=session.largest), 0
    for count in [length - singles] + [1] * singles:
        results = session(text.truth.ids[None, start : start + count])
        end, logits = start + count, results["logits"][0]
        taps = results["aux_hidden_states"][0] if "aux_hidden_states" in results else None
        seen.add(text, slice(start, end), slice(end - len(logits), end), logits, taps)
        start = end
    return seen


def _check_taps(rows: list[_Rows], taps: Sequence[int], running: Running, results: Results) -> None:
    """Each tap against the stream that it should equal, and how far its neighbours are from it."""
    figures: list[dict[str, Any]] = []
    normed = len(rows[0].truth) - 1 if rows else 0
    for place, tap in enumerate(taps):
        width = rows[0].truth[0].shape[-1] if rows else 0
        parts = [row.got[:, place * width : (place + 1) * width] for row in rows]

        def over(measure: Callable[[Array, Array], float], parts: list[Array] = parts) -> list[float]:
            """The distance from each stream, the largest over all rows."""
            streams = range(len(rows[0].truth) if rows else 0)
            return [max(measure(got, row.truth[n]) for got, row in zip(parts, rows, strict=True)) for n in streams]

        distances = over(relative)
        nearest = int(np.argmin(over(typical) if running.rounds else distances)) if distances else -1
        named = [_layer(stream, normed) for stream in range(len(distances))]
        figures.append({"tap": tap, "distances": distances, "nearest": nearest, "names": named})
        if not distances or tap >= len(distances):
            results.add(Check(f"tap {tap}", "the graph has no such tap", Verdict.FAILED))
            continue
        own = Worst()
        for row in rows if running.rounds else ():
            own.add(relative(row.own[tap], row.truth[tap]))
        around = [f"{named[n]} {distances[n]:.1e}" for n in (tap - 1, tap + 1) if n < len(distances)]
        what = f"the output of {named[tap]} (neighbours are at {', '.join(around)})"
        what += f" ({own_error(own)})" if running.rounds else ""
        other = (
            f"should be the output of {named[tap]}, is nearest to that of {named[nearest]}" if nearest != tap else ""
        )
        check = results.compared(f"tap {tap}", what, Worst(distances[tap]), running.allows(own.value), other)
        if running.rounds and nearest != tap and check.verdict is Verdict.PASSED:  # a wide limit may let it through
            results.add(replace(check, what=other, verdict=Verdict.FAILED))
    if rows and rows[0].got.shape[-1] != len(taps) * rows[0].truth[0].shape[-1]:
        found = rows[0].got.shape[-1] / rows[0].truth[0].shape[-1]
        results.add(Check("taps", f"{found:g} streams are output, {len(taps)} are read", Verdict.FAILED))
    results.figures["taps"] = figures


def _layer(stream: int, normed: int) -> str:
    """Whose output a stream is; ``normed`` is the last one, the final norm's."""
    return "the final norm" if stream == normed else f"layer {stream - 1}" if stream else "the embedding"


def _version() -> str:
    import transformers

    return str(transformers.__version__)
