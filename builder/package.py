"""A package of graphs: what an export writes, in an order in which each graph may share tensors of those before it.

The target is one entry, a drafter beside it another; heads for more tokens, vision and embedding graphs are further
ones. Planning, writing, the list of files and the proof walk the list, and know of no graph by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from genai_config.sections import BlockDrafter, Decoder, SharedInitializer, graph_names
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.save import save, stored_tensors
from onnxkit.weights.tensor_plan import TensorPlan

Section = Decoder | BlockDrafter


@dataclass(frozen=True)
class GraphPlan:
    """One graph, planned: no weight is read yet.

    Attributes:
        role: The name of its section under ``model`` in ``genai_config.json``.
        section: That section, but for where shared tensors lie.
        model: The graph.
        tensors: What its initializers are made of, and what becomes of the checkpoint's tensors.
        checkpoint: Where its weights come from.
        notes: What the user should know, a line each.
        summary: What it is and costs, a line each, for the end of an export.

    Raises:
        RuntimeError: Section and graph name other inputs or outputs, which is a bug.
    """

    role: str
    section: Section
    model: ir.Model
    tensors: TensorPlan
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for declared, values in zip(graph_names(self.section), (self.inputs, self.outputs), strict=True):
            patterns = {name: re.compile(re.escape(name).replace("%d", r"\d+")) for name in declared}
            unused = [name for name, pattern in patterns.items() if not any(pattern.fullmatch(n) for n in values)]
            undeclared = [n for n in values if not any(pattern.fullmatch(n) for pattern in patterns.values())]
            if unused or undeclared:
                raise RuntimeError(
                    f"genai_config.json and the graph disagree: {unused} unused, {undeclared} undeclared"
                )

    @property
    def inputs(self) -> list[str]:
        """The names of the graph's inputs."""
        return [str(value.name) for value in self.model.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """The names of the graph's outputs."""
        return [str(value.name) for value in self.model.graph.outputs]

    @property
    def shared(self) -> list[str]:
        """The initializers whose bytes an earlier graph's data file holds."""
        return self.tensors.shared

    @property
    def own_bytes(self) -> int:
        """Bytes that will be written beside its model file."""
        return self.tensors.external_bytes


@dataclass(frozen=True)
class Package:
    """The graphs of an export, in the order in which they are written.

    Raises:
        RuntimeError: A graph shares a tensor that no earlier one has, or two have one role or file, which is a bug.
    """

    graphs: tuple[GraphPlan, ...]

    def __post_init__(self) -> None:
        for names in ([graph.role for graph in self.graphs], [graph.section.filename for graph in self.graphs]):
            if len(set(names)) < len(names):
                raise RuntimeError(f"a package has {', '.join(names)}")
        for graph in self.graphs:
            for name in graph.shared:
                self.owner(graph, name)

    @property
    def own_bytes(self) -> int:
        """Bytes of weights that will be written."""
        return sum(graph.own_bytes for graph in self.graphs)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The folders that are read, each once."""
        return list({id(graph.checkpoint): graph.checkpoint for graph in self.graphs}.values())

    def hollow(self) -> Package:
        """The same graphs without the bytes of their weights."""
        return Package(tuple(replace(graph, tensors=graph.tensors.hollow()) for graph in self.graphs))

    def owner(self, graph: GraphPlan, name: str) -> GraphPlan:
        """The graph that holds the bytes of an initializer: the graph itself, or an earlier one that has it."""
        if name not in graph.shared:
            return graph
        for earlier in self.graphs[: self.graphs.index(graph)]:
            if name in earlier.tensors.initializers and name not in earlier.shared:
                return earlier
        raise RuntimeError(f"{graph.role} shares {name}, which no graph before it has")


def save_package(
    package: Package, folder: Path, progress: Callable[[int], object] | None = None
) -> dict[str, tuple[SharedInitializer, ...]]:
    """Write the graphs to an empty folder; gives what each shares with another, by its role, and where that lies."""
    shares: dict[str, dict[str, SharedInitializer]] = {graph.role: {} for graph in package.graphs}
    for graph in package.graphs:
        kept: dict[str, ir.ExternalTensor] = {}
        for name in graph.shared:
            owner = package.owner(graph, name)
            kept |= stored_tensors(folder / owner.section.filename, [name])
            shares[owner.role][name] = shares[graph.role][name] = _place(kept[name])
        save(graph.model, folder / graph.section.filename, graph.tensors, progress, kept)
    return {role: tuple(tensors.values()) for role, tensors in shares.items()}


def _place(tensor: ir.ExternalTensor) -> SharedInitializer:
    """The entry of a tensor that several graphs read, from where a data file holds it."""
    return SharedInitializer(
        name=str(tensor.name),
        data_file=str(tensor.location),
        offset=str(tensor.offset or 0),
        length=str(tensor.nbytes),
        data_type=int(tensor.dtype),
        shape=tuple(int(size) for size in tensor.shape.numpy()),
    )
