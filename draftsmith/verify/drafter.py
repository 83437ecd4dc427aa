"""Checks of the drafter: the lowered graph against the PyTorch reference, as a whole and part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from builder.qwen35.names import EMBEDDING, HEAD
from drafters.config import DFlash2
from draftsmith.validation.draft_session import DraftSession, Turn
from draftsmith.validation.drafter_reference import (
    ReferenceDrafter,
    Request,
    all_logits,
    candidates,
    convolved,
    drafted_hidden,
    extend,
    scored,
)
from draftsmith.validation.packed_session import Array
from draftsmith.validation.ranges import with_ranges
from draftsmith.verify.checks import Results, Worst
from draftsmith.verify.folder import ExportFolder
from draftsmith.verify.running import Running
from draftsmith.verify.sources import DrafterSource, Target
from draftsmith.verify.target import activation_type, random_ids, relative, tell_ranges

# New context rows of two requests in each run, as many as fit; between runs a part of the drafts was accepted.
_LENGTH, _FIRST, _NEXT = 330, (300, 9), [(3, 8), (1, 5), (8, 1)]
_SHORTEST = 16


@dataclass
class _Errors:
    """The largest differences so far, and how many candidates were compared and differ."""

    limit: float
    scores: Worst = field(default_factory=Worst)
    candidates: int = 0
    different: int = 0
    parts: dict[str, Worst] = field(default_factory=dict)


@dataclass(frozen=True)
class _Probe:
    """Values inside the graph that are put out for comparison: names of inputs and outputs of one part."""

    part: str
    layer: str
    side: int
    inputs: tuple[str, ...]
    output: str


def check_drafter(
    export: ExportFolder, running: Running, target: Target, source: DrafterSource, results: Results
) -> None:
    """Candidates and scores over several runs, the convolutions and the head by themselves, the range of its values."""
    graph = export.drafter
    assert graph is not None
    if export.context < _SHORTEST:
        results.incomplete("drafter scores", f"not compared: a context of {export.context} has no room for the runs")
        return
    reference = source.reference(target)
    dtype = activation_type(graph)
    ranged = with_ranges(running.folder / graph.path.name, graph.model.graph, dtype)
    path, probes = _with_probes(ranged, reference)
    errors, largest = _run(path, probes, export, running, reference, target, source)
    what = f"of {errors.candidates} candidates, {errors.different} differ from the reference's"
    faults = ["ids must be equal"] if errors.different else []
    results.stated("drafter candidates", what, faults, errors.candidates)
    what = "every pair of neighbouring candidates, two requests, four runs"
    results.compared("drafter scores", what, errors.scores, running.limit)
    tell_ranges("drafter ranges", dtype, largest, results)
    parts = {"head": "hidden states times the target's head"}
    if isinstance(source.config.variant, DFlash2):
        parts["convolution"] = "each row of each block, both sides, from the graph's own inputs"
    for part, title in parts.items():
        if part in errors.parts:
            results.compared(f"drafter {part}", title, errors.parts[part], running.limit)
        else:
            results.incomplete(f"drafter {part}", "not compared by itself: not found in this graph")


def _run(
    path: Path,
    probes: list[_Probe],
    export: ExportFolder,
    running: Running,
    reference: ReferenceDrafter,
    target: Target,
    source: DrafterSource,
) -> tuple[_Errors, dict[str, float]]:
    assert export.drafter is not None
    config, errors = source.config, _Errors(running.limit)
    ring = export.drafter.section.get("sliding_window", -1)
    window = ring if ring > 0 else None
    session = DraftSession(
        path, 2, config.block_size, config.mask_token_id, window, providers=running.providers
    )
    requests = [Request(), Request()]
    length = min(_LENGTH, export.context)
    sequences = [target.expected(random_ids(target.config.vocab_size, seed, length)) for seed in (5, 6)]
    taps = [np.concatenate([sequence.streams[tap] for tap in config.taps], axis=-1) for sequence in sequences]
    for counts in _steps(length):
        turns = [
            Turn(rows[request.length : request.length + count], int(sequence.ids[request.length + count]))
            for request, sequence, rows, count in zip(requests, sequences, taps, counts, strict=True)
        ]
        for request, turn, result in zip(requests, turns, session(turns), strict=True):
            extend(reference, request, torch.from_numpy(turn.taps))
            assert result is not None and turn.anchor is not None
            _compare(reference, request, turn.anchor, result, errors)
        _compare_parts(reference, probes, session.results, errors)
    return errors, session.largest


def _steps(length: int) -> list[tuple[int, int]]:
    """The context rows of each run, so that an anchor is left of ``length`` tokens."""
    later = [sum(counts) for counts in zip(*_NEXT, strict=True)]
    first = [min(most, length - 1 - rest) for most, rest in zip(_FIRST, later, strict=True)]
    return [(first[0], first[1]), *_NEXT]


def _compare(
    reference: ReferenceDrafter, request: Request, anchor: int, result: tuple[Array, Array], errors: _Errors
) -> None:
    """Candidates against the reference's; scores of the graph's own candidates, for of equally good ones either do."""
    hidden = drafted_hidden(reference, request, anchor)
    wanted = candidates(reference, hidden).numpy()
    ids, scores = result
    errors.candidates += wanted.size
    logits = all_logits(reference, hidden).numpy()
    valid = (ids >= 0) & (ids < logits.shape[-1])
    if ids.shape != wanted.shape or not valid.all():
        errors.different += wanted.size if ids.shape != wanted.shape else int((~valid).sum())
        errors.scores.add(float("inf"))
        return
    chosen = np.take_along_axis(logits, ids, -1)
    gap = np.abs(chosen - np.take_along_axis(logits, wanted, -1))
    most = np.abs(logits[np.isfinite(logits)]).max()
    twice = [len(set(row)) < len(row) for row in ids.tolist()]
    errors.different += int(((ids != wanted) & ~(gap <= errors.limit * most)).sum()) + sum(twice)
    errors.scores.add(relative(scores, scored(reference, hidden, anchor, torch.from_numpy(ids.astype(np.int64))).scores.numpy()))


def _compare_parts(
    reference: ReferenceDrafter, probes: list[_Probe], values: dict[str, Array], errors: _Errors
) -> None:
    """Each probed part from its own inputs, so that an error elsewhere does not show here."""
    block = reference.config.block_size
    for probe in probes:
        inputs = [torch.from_numpy(values[name]) for name in probe.inputs]
        if probe.part == "head":
            wanted = inputs[0] @ reference.head.T
        else:
            blocks = zip(*(chunks(x, block) for x in inputs), strict=True)
            wanted = torch.cat([convolved(reference, probe.layer, probe.side, u, x) for u, x in blocks])
        errors.parts.setdefault(probe.part, Worst()).add(relative(values[probe.output], wanted.numpy()))


def chunks(rows: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Rows in groups of ``size``."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _with_probes(path: Path, reference: ReferenceDrafter) -> tuple[Path, list[_Probe]]:
    """The lowered graph with the probed values as further outputs, in a file beside it."""
    model = ir.load(path)
    probes = [*_head_probe(model.graph), *_convolution_probes(model.graph)]
    known = {str(value.name) for value in model.graph.outputs}
    values = {str(output.name): output for node in model.graph for output in node.outputs}
    for name in dict.fromkeys(name for probe in probes for name in (*probe.inputs, probe.output)):
        if name not in known:
            values[name].type = ir.TensorType(ir.DataType.FLOAT)
            model.graph.outputs.append(values[name])
    probed = path.with_name(f"probed-{path.name}")
    ir.save(model, probed)
    return probed, probes


def _head_probe(graph: ir.Graph) -> Iterator[_Probe]:
    for name in (HEAD, EMBEDDING):
        table = graph.initializers.get(name)
        for node in [use.node for use in table.uses()] if table is not None else []:
            if node.op_type == "Gemm" and node.inputs[0] is not None:
                yield _Probe("head", "", 0, (str(node.inputs[0].name),), str(node.outputs[0].name))


def _convolution_probes(graph: ir.Graph) -> Iterator[_Probe]:
    """From each base kernel down to the two sums, and up again to what they read."""
    for name, kernel in graph.initializers.items():
        if not name.endswith(".base_kernel"):
            continue
        (add,) = kernel.consumers()
        split = _down(_down(add)[0])[0]
        projected = add.inputs[0].producer() if add.inputs[0] is not None else None
        gemm = projected.inputs[0].producer() if projected is not None and projected.inputs[0] is not None else None
        if gemm is None or gemm.inputs[0] is None:
            continue
        u = str(gemm.inputs[0].name)
        for side, coefficients in enumerate(split.outputs):
            (product,) = coefficients.consumers()
            tapped = product.inputs[0].producer() if product.inputs[0] is not None else None
            blocks = tapped.inputs[0].producer() if tapped is not None and tapped.inputs[0] is not None else None
            if blocks is None or blocks.inputs[0] is None:
                continue
            output = _down(_down(product)[0])[0].outputs[0]
            layer = name.removesuffix(".base_kernel")
            yield _Probe("convolution", layer, side, (u, str(blocks.inputs[0].name)), str(output.name))


def _down(node: ir.Node) -> list[ir.Node]:
    return list(node.outputs[0].consumers())
