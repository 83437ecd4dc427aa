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
    block_hidden,
    convolved,
    draft,
    extend,
)
from draftsmith.validation.packed_session import Array
from draftsmith.verify.checks import Results
from draftsmith.verify.folder import ExportFolder, Graph
from draftsmith.verify.sources import DrafterSource, Target
from draftsmith.verify.target import LIMIT, random_ids, relative

# New context rows of two requests in each run; between runs a part of the drafts was accepted.
_STEPS = [(300, 9), (3, 8), (1, 5), (8, 1)]


@dataclass
class _Errors:
    """The largest differences so far, and how many candidates were compared and differ."""

    scores: float = 0.0
    candidates: int = 0
    different: int = 0
    parts: dict[str, float] = field(default_factory=dict)

    def part(self, name: str, error: float) -> None:
        """Note the difference of one part."""
        self.parts[name] = max(self.parts.get(name, 0.0), error)


@dataclass(frozen=True)
class _Probe:
    """Values inside the graph that are put out for comparison: names of inputs and outputs of one part."""

    part: str
    layer: str
    side: int
    inputs: tuple[str, ...]
    output: str


def check_drafter(export: ExportFolder, low: Path, target: Target, source: DrafterSource, results: Results) -> None:
    """Candidates and scores over several runs, the convolutions and the head by themselves."""
    graph = export.drafter
    assert graph is not None
    reference = source.reference(target)
    path, probes = _with_probes(low / graph.path.name, reference)
    errors = _run(path, probes, graph, reference, target, source)
    what = f"of {errors.candidates} candidates, {errors.different} differ from the reference's"
    results.stated("drafter candidates", what, ["ids must be equal"] if errors.different else [])
    what = "every pair of neighbouring candidates, two requests, four runs"
    results.compared("drafter scores", what, errors.scores, LIMIT)
    parts = {"head": "hidden states times the target's head"}
    if isinstance(source.config.variant, DFlash2):
        parts["convolution"] = "each row of each block, both sides, from the graph's own inputs"
    for part, title in parts.items():
        if part in errors.parts:
            results.compared(f"drafter {part}", title, errors.parts[part], LIMIT)
        else:
            results.skipped(f"drafter {part}", "not found in this graph")


def _run(
    path: Path, probes: list[_Probe], graph: Graph, reference: ReferenceDrafter, target: Target, source: DrafterSource
) -> _Errors:
    config, errors = source.config, _Errors()
    ring = graph.section.get("sliding_window", -1)
    session = DraftSession(path, 2, config.block_size, config.mask_token_id, ring if ring > 0 else None)
    requests = [Request(), Request()]
    sequences = [target.expected(random_ids(target.config.vocab_size, seed, 330)) for seed in (5, 6)]
    read = target.streams_of(config.taps, source.last_tap)
    taps = [np.concatenate([sequence.streams[stream] for stream in read], axis=-1) for sequence in sequences]
    for counts in _STEPS:
        turns = [
            Turn(rows[request.length : request.length + count], int(sequence.ids[request.length + count]))
            for request, sequence, rows, count in zip(requests, sequences, taps, counts, strict=True)
        ]
        for request, turn, result in zip(requests, turns, session(turns), strict=True):
            extend(reference, request, torch.from_numpy(turn.taps))
            assert result is not None and turn.anchor is not None
            _compare(reference, request, turn.anchor, result, errors)
        _compare_parts(reference, probes, session.results, errors)
    return errors


def _compare(
    reference: ReferenceDrafter, request: Request, anchor: int, result: tuple[Array, Array], errors: _Errors
) -> None:
    lattice = draft(reference, request, anchor)
    ids, scores = result
    wanted = lattice.ids.numpy()
    errors.candidates += wanted.size
    if ids.shape != wanted.shape:
        errors.different += wanted.size
        errors.scores = float("inf")
        return
    hidden = block_hidden(reference, request, anchor)[-len(wanted) :]
    logits = (hidden @ reference.head.T).numpy()
    if "d2t" in reference.weights:  # rows of the head are a part of the target's vocabulary
        rows = np.arange(logits.shape[-1]) + reference.weights["d2t"].numpy()
        logits, part = np.full((len(logits), reference.config.vocab_size), -np.inf, np.float32), logits
        logits[:, rows] = part
    valid = (ids >= 0) & (ids < logits.shape[-1])
    chosen = np.take_along_axis(logits, ids.clip(0, logits.shape[-1] - 1), -1)
    gap = np.abs(chosen - np.take_along_axis(logits, wanted, -1))  # of equally good ones either may be named
    most = np.abs(logits[np.isfinite(logits)]).max()
    errors.different += int((~valid | ((ids != wanted) & ~(gap <= LIMIT * most))).sum())
    if (ids == wanted).all():
        errors.scores = max(errors.scores, relative(scores, lattice.scores.numpy()))


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
        errors.part(probe.part, relative(values[probe.output], wanted.numpy()))


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
