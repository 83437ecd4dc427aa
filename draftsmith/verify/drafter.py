"""Checks of the drafter: the graph that runs against the PyTorch reference, as a whole and part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from drafters.checkpoint.config import DFlash2
from drafters.checkpoint.names import HEAD
from draftsmith.validation.draft_session import DraftSession, Turn
from draftsmith.validation.drafter_reference import (
    ReferenceDrafter,
    Request,
    all_logits,
    candidates,
    convolved,
    drafted_hidden,
    extend,
    rounding,
    scored,
)
from draftsmith.validation.ranges import value_types, with_ranges
from draftsmith.validation.session import Array
from draftsmith.validation.widen import by_real_path
from draftsmith.verify.checks import Results, Worst
from draftsmith.verify.folder import ExportFolder, Graph
from draftsmith.verify.running import Running
from draftsmith.verify.sources import TORCH, DrafterSource, Target
from draftsmith.verify.target import activation_type, own_error, random_ids, relative, tell_ranges

# New context rows of two requests in each run, as many as fit; between runs some of the drafts were accepted.
_LENGTH, _FIRST, _NEXT = 330, (300, 9), [(3, 8), (1, 5), (8, 1)]
_SHORTEST = 16


@dataclass
class _Errors:
    """The largest differences so far.

    Attributes:
        scores: Of scores.
        gaps: For each candidate other than the reference's, how far it is from it, divided by the largest logit.
        wrong: How many are not valid candidates: not tokens, or twice in a row.
        candidates: How many there were.
        parts: Of single parts.
        own: Those of PyTorch's own run in 16 bits: of scores, logits and parts, by name.
    """

    scores: Worst = field(default_factory=Worst)
    gaps: list[float] = field(default_factory=list)
    wrong: int = 0
    candidates: int = 0
    parts: dict[str, Worst] = field(default_factory=dict)
    own: dict[str, Worst] = field(default_factory=dict)

    def add_own(self, name: str, error: float) -> None:
        """Note an error of PyTorch's own run."""
        self.own.setdefault(name, Worst()).add(error)

    def allowed(self, name: str, running: Running) -> float:
        """The limit of a comparison."""
        return running.allows(self.own[name].value if name in self.own else None)

    def beside(self, name: str) -> str:
        """The measure behind a limit, in words."""
        return f" ({own_error(self.own[name])})" if name in self.own else ""


@dataclass(frozen=True)
class _Probe:
    """Values inside the graph that are output for comparison: names of inputs and outputs of one part."""

    part: str
    layer: str
    side: int
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class _Setting:
    """What is compared with what."""

    export: ExportFolder
    running: Running
    reference: ReferenceDrafter
    target: Target
    source: DrafterSource

    @property
    def graph(self) -> Graph:
        """The drafter's graph."""
        assert self.export.drafter is not None
        return self.export.drafter

    def references(self) -> list[ReferenceDrafter]:
        """The truth, and if the copy runs in 16 bits, PyTorch's own run in 16 bits."""
        own = [rounding(self.reference, TORCH[activation_type(self.graph)])] if self.running.rounds else []
        return [self.reference, *own]

    def rounded(self, taps: Array) -> Array:
        """Taps as the graph is given them."""
        given = next(v.dtype for v in self.graph.model.graph.inputs if v.name == "aux_hidden_states")
        if not self.running.rounds or given is None:
            return taps
        return torch.from_numpy(taps).to(TORCH[given]).float().numpy()


def check_drafter(
    export: ExportFolder, running: Running, target: Target, source: DrafterSource, results: Results
) -> None:
    """Candidates and scores over several runs, the convolutions and the head separately, and the range of values."""
    graph = export.drafter
    assert graph is not None
    if export.context < _SHORTEST:
        results.incomplete("drafter scores", f"not compared: a context of {export.context} has no room for the runs")
        return
    reference = source.reference(target)
    dtype, file = activation_type(graph), running.folder / graph.path.name
    setting = _Setting(export, running, reference, target, source)
    heads = {HEAD, target.source.head}
    if running.rounds:  # the export's own graph, then one that outputs its parts, which may be fused differently
        errors, _ = _run(file, [], setting)
        parts, _ = _run(*_with_probes(file, graph.model.graph, heads, running), setting, running.data)
        errors.parts, errors.own = parts.parts, parts.own | errors.own
    else:
        path, probes = _with_probes(file, graph.model.graph, heads, running)
        errors, largest = _run(with_ranges(path, graph.model.graph, dtype), probes, setting)
        tell_ranges("drafter ranges", dtype, largest, results)
    _tell(errors, setting, results)


def _tell(errors: _Errors, setting: _Setting, results: Results) -> None:
    """Note what the runs gave."""
    running = setting.running
    limit = errors.allowed("logits", running)
    far = sum(not gap <= limit for gap in errors.gaps)
    wrong = errors.wrong + far
    what = f"of {errors.candidates} candidates, 0 differ from the reference's"
    if running.rounds:
        most = max(errors.gaps, default=0.0)
        what += f", {len(errors.gaps) - far} more by {most:.1e} of {limit:.1e} at most{errors.beside('logits')}"
    faults = [f"{wrong} of {errors.candidates} differ from the reference's; ids must be equal"] if wrong else []
    results.stated("drafter candidates", what, faults, errors.candidates)
    what = "every pair of neighbouring candidates, two requests, four runs"
    limit = errors.allowed("scores", running)
    results.compared("drafter scores", what + errors.beside("scores"), errors.scores, limit)
    parts = {"head": "hidden states times the target's head"}
    if isinstance(setting.source.config.variant, DFlash2):
        parts["convolution"] = "each row of each block, both sides, from the graph's own inputs"
    for part, title in parts.items():
        if part in errors.parts:
            limit = errors.allowed(part, running)
            results.compared(f"drafter {part}", title + errors.beside(part), errors.parts[part], limit)
        else:
            results.incomplete(f"drafter {part}", "not compared by itself: not found in this graph")


def _run(
    path: Path, probes: list[_Probe], setting: _Setting, data: Path | None = None
) -> tuple[_Errors, dict[str, float]]:
    """Four runs of two requests, each against the reference; in 16 bits, also against PyTorch's own run in 16 bits."""
    running, config, errors = setting.running, setting.source.config, _Errors()
    section = setting.graph.section
    window = section["sliding_window"] if section.get("sliding_window", -1) > 0 else None
    block, mask = config.block_size, config.mask_token_id
    session = DraftSession(path, 2, block, mask, window, place=running.place, data=data)
    references = setting.references()
    requests = [[Request() for _ in references] for _ in range(2)]
    length = min(_LENGTH, setting.export.context)
    ids = [random_ids(setting.target.config.vocab_size, seed, length) for seed in (5, 6)]
    sequences = [setting.target.expected(row) for row in ids]
    read = setting.target.streams_of(config.taps, setting.source.last_tap)
    taps = [np.concatenate([sequence.streams[stream] for stream in read], axis=-1) for sequence in sequences]
    taps = [setting.rounded(rows) for rows in taps]
    for counts in _steps(length):
        turns = [
            Turn(rows[request[0].length : request[0].length + count], int(sequence.ids[request[0].length + count]))
            for request, sequence, rows, count in zip(requests, sequences, taps, counts, strict=True)
        ]
        for states, turn, result in zip(requests, turns, session(turns), strict=True):
            for reference, state in zip(references, states, strict=True):
                extend(reference, state, torch.from_numpy(turn.taps))
            assert result is not None and turn.anchor is not None
            _compare(references, states, turn.anchor, result, errors)
        _compare_parts(references, probes, session.results, errors)
    return errors, session.largest


def _steps(length: int) -> list[tuple[int, int]]:
    """The context rows of each run, so that of ``length`` tokens one is left as the anchor."""
    later = [sum(counts) for counts in zip(*_NEXT, strict=True)]
    first = [min(most, length - 1 - rest) for most, rest in zip(_FIRST, later, strict=True)]
    return [(first[0], first[1]), *_NEXT]


def _compare(
    references: list[ReferenceDrafter],
    states: list[Request],
    anchor: int,
    result: tuple[Array, Array],
    errors: _Errors,
) -> None:
    """Candidates against the reference's; scores of the graph's own candidates, as equally good ones may differ."""
    reference = references[0]
    hidden = drafted_hidden(reference, states[0], anchor)
    wanted = candidates(reference, hidden).numpy()
    ids, scores = result
    errors.candidates += wanted.size
    logits = all_logits(reference, hidden).numpy()
    valid = (ids >= 0) & (ids < logits.shape[-1])
    if ids.shape != wanted.shape or not valid.all():
        errors.wrong += wanted.size if ids.shape != wanted.shape else int((~valid).sum())
        errors.scores.add(float("inf"))
        return
    finite = np.isfinite(logits)
    most = max(1e-30, float(np.abs(logits[finite]).max()))
    gaps = np.abs(np.take_along_axis(logits, ids, -1) - np.take_along_axis(logits, wanted, -1)) / most
    errors.gaps += gaps[ids != wanted].tolist()
    errors.wrong += sum(len(set(row)) < len(row) for row in ids.tolist())
    chosen = torch.from_numpy(ids.astype(np.int64))
    truth = scored(reference, hidden, anchor, chosen).scores.numpy()
    errors.scores.add(relative(scores, truth))
    for own, state in zip(references[1:], states[1:], strict=True):
        rounded = drafted_hidden(own, state, anchor)
        difference = np.abs(all_logits(own, rounded).float().numpy()[finite] - logits[finite])
        errors.add_own("logits", float(difference.max()) / most)
        errors.add_own("scores", relative(scored(own, rounded, anchor, chosen).scores.numpy(), truth))


def _compare_parts(
    references: list[ReferenceDrafter], probes: list[_Probe], values: dict[str, Array], errors: _Errors
) -> None:
    """Each probed part from its own inputs, so that an error elsewhere does not show here."""
    for probe in probes:
        truth, *own = (_part(reference, probe, values) for reference in references)
        errors.parts.setdefault(probe.part, Worst()).add(relative(values[probe.output], truth))
        for rounded in own:
            errors.add_own(probe.part, relative(rounded, truth))


def _part(reference: ReferenceDrafter, probe: _Probe, values: dict[str, Array]) -> Array:
    """What a part of the graph should output for the inputs that it had."""
    inputs = [torch.from_numpy(values[name]).to(reference.head.dtype) for name in probe.inputs]
    if probe.part == "head":
        return (inputs[0] @ reference.head.T).float().numpy()
    blocks = zip(*(chunks(x, reference.config.block_size) for x in inputs), strict=True)
    return torch.cat([convolved(reference, probe.layer, probe.side, u, x) for u, x in blocks]).float().numpy()


def chunks(rows: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Rows in groups of ``size``."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _with_probes(path: Path, stored: ir.Graph, heads: set[str], running: Running) -> tuple[Path, list[_Probe]]:
    """The graph that runs with the probed values as additional outputs, in a file next to it.

    Args:
        path: The graph.
        stored: The export's, whose values have the same names.
        heads: What the head's table may be called: it is the drafter's own or the target's.
        running: The copy that the graph belongs to.
    """
    model = ir.load(path)
    probes = [*_head_probe(stored, heads), *_convolution_probes(stored)]
    types = value_types(stored) if running.rounds else {}
    known = {str(value.name) for value in model.graph.outputs}
    values = {str(output.name): output for node in model.graph for output in node.outputs}
    for name in dict.fromkeys(name for probe in probes for name in (*probe.inputs, probe.output)):
        if name not in known:
            values[name].type = values[name].type or ir.TensorType(types.get(name, ir.DataType.FLOAT))
            model.graph.outputs.append(values[name])
    for value in model.graph.initializers.values() if running.data else ():
        if isinstance(value.const_value, ir.ExternalTensor):  # by its real name, in the folder that really holds it
            tensor = by_real_path(value.const_value, path.parent)
            place = (tensor.offset, tensor.length, tensor.dtype)
            name = Path(tensor.location).name
            value.const_value = ir.ExternalTensor(name, *place, shape=tensor.shape, name=str(tensor.name))
    probed = path.with_name(f"probed-{path.name}")
    ir.save(model, probed)
    return probed, probes


def _head_probe(graph: ir.Graph, heads: set[str]) -> Iterator[_Probe]:
    for name in sorted(heads):
        table = graph.initializers.get(name)
        for node in [use.node for use in table.uses()] if table is not None else []:
            if node.op_type == "Gemm" and node.inputs[0] is not None:
                yield _Probe("head", "", 0, (str(node.inputs[0].name),), str(node.outputs[0].name))


def _convolution_probes(graph: ir.Graph) -> Iterator[_Probe]:
    """From each base kernel down to the two sums, and back up to what they read."""
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
