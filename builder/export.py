"""The build: checks first, all of them; then a staging folder; then one step that puts it in place."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from builder.located import located
from builder.options import BuildOptions
from builder.output import OutputFolder, mendable
from builder.plan import Plan, plan
from builder.write import write
from onnxkit.progress import progress_bar
from onnxkit.sizes import readable
from onnxkit.text import clipped, escaped

_log = logging.getLogger(__name__)

# Room for what is not weights: the graph, the configuration. A 64-layer graph is under 2 MB.
_GRAPH_BYTES = 4 << 20


@dataclass(frozen=True)
class Report:
    """What an export did: the folder, its files with their sizes in bytes, the seconds it took, notes, its graphs."""

    folder: Path
    files: dict[str, int]
    seconds: float
    notes: tuple[str, ...]
    graphs: tuple[str, ...] = ()

    def __str__(self) -> str:
        width = max(map(len, self.files))
        lines = [f"Exported to {escaped(str(self.folder))} in {self.seconds:.1f} s:"]
        lines += [f"  {name:<{width}}  {readable(size):>10}" for name, size in self.files.items()]
        lines += [f"  {'in all':<{width}}  {readable(sum(self.files.values())):>10}"]
        lines += self.graphs
        lines += [f"Note: {clipped(escaped(note))}" for note in self.notes]
        return "\n".join(lines)


def export(options: BuildOptions) -> Report:
    """Export a checkpoint.

    Raises:
        ExportError: Something in the request or the checkpoint is not right; the output is as it was.
    """
    start = time.monotonic()
    options, folder = located(options, _judge)
    output = _output(options, folder)
    build = plan(options, folder)
    weights = build.package.own_bytes
    _log.info("planned: every check has passed; %s of weights to write", readable(weights))
    output.check_room(weights + build.tokenizer.size() + _GRAPH_BYTES)
    with output as staging, mendable(options.output):
        with progress_bar(weights, "Writing weights") as progress:
            _log.info("writing to %s", staging)
            files = write(build, staging, progress)
        for checkpoint in build.package.checkpoints:
            checkpoint.check_unchanged()
        output.commit()
        _log.info("the files of the checkpoints are as they were; %s is in place", options.output)
    return Report(options.output, files, time.monotonic() - start, (*build.notes, *output.notes), _graphs(build))


def _graphs(build: Plan) -> tuple[str, ...]:
    """For each graph, how its weights were made, and its own summary lines."""
    graphs = build.package.graphs
    width = max(len(graph.section.filename) for graph in graphs)
    weights = [f"  {graph.section.filename:<{width}}  {graph.tensors.summary()}" for graph in graphs]
    return ("Tensors:", *weights, *(line for graph in graphs for line in graph.summary))


def _output(options: BuildOptions, folder: Path) -> OutputFolder:
    return OutputFolder(options.output, [folder, *([options.drafter] if isinstance(options.drafter, Path) else [])])


def _judge(options: BuildOptions, folder: Path, headers_only: frozenset[Path]) -> None:
    """Find what a build would fail on before the weights are downloaded."""
    build = plan(options, folder, headers_only)
    _output(options, folder).check_room(build.package.own_bytes + build.tokenizer.size() + _GRAPH_BYTES)
