"""The export planned again from what it records and the checkpoints, and each file compared with what would be written.

Exports are deterministic. The exporter's own code writes the plan to a folder of its own, without the weights: the
model files say where each tensor lies, and the tensors' contents are compared as a stream that is never stored.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from builder.option_table import DRAFTER_PATHS
from builder.output import MANIFEST
from builder.plan import Plan, plan
from builder.recorded import recorded_request
from builder.write import write
from draftsmith.verify.checks import Results
from draftsmith.verify.compared import (
    config_faults,
    graph_faults,
    manifest_faults,
    other_files,
    text_faults,
    weight_faults,
)
from draftsmith.verify.files import LISTING
from draftsmith.verify.folder import CONFIG, ExportFolder
from draftsmith.verify.sources import DrafterSource, Target
from onnxkit import __version__
from onnxkit.errors import ExportError, listed
from onnxkit.sizes import readable as readable_size

NAME = "what would be written"
GRAPHS, WEIGHTS, CONFIGURATION = "graphs as written", "weights as written", "configuration as written"
TOKENIZER, OPTIONS = "tokenizer as written", "options as recorded"
AS_WRITTEN = (LISTING, NAME, GRAPHS, WEIGHTS, CONFIGURATION, TOKENIZER, OPTIONS)


@dataclass(frozen=True)
class Written:
    """What would be written: the plan, the folder with everything but the weights, and whether the drafter is in it."""

    build: Plan
    folder: Path
    whole: bool


def check_planned(
    export: ExportFolder, target: Target | None, drafter: DrafterSource | None, readable: bool, results: Results
) -> None:
    """Compare every file with what this tool would write; weights if every tensor is ``readable``."""
    if why := _not_to_plan(export, target):
        results.incomplete(NAME, f"not compared (weights, graphs, configuration, tokenizer): {why}")
        return
    assert target is not None and export.manifest is not None
    with results.guarded(NAME), tempfile.TemporaryDirectory(prefix="draftsmith-planned-") as work:
        try:
            written = _write(export, target, drafter, Path(work))
        except ExportError as error:
            what = "these checkpoints and the options in draftsmith.json make an export"
            _tell(export, NAME, what, str(error).splitlines(), 1, results)
            return
        _compare(export, written, readable, results)
    if export.drafter is not None and drafter is None:
        results.incomplete("the drafter's files", "not compared: its checkpoint is not given (--drafter)")


def _not_to_plan(export: ExportFolder, target: Target | None) -> str | None:
    if export.manifest is None:
        return f"the export has no {MANIFEST} from this tool"
    if target is None:
        return "the target's checkpoint is not given (--target)"
    return None


def _write(export: ExportFolder, target: Target, drafter: DrafterSource | None, folder: Path) -> Written:
    assert export.manifest is not None
    source = drafter.checkpoint.folder if drafter is not None else None
    build = plan(recorded_request(export.manifest, target.checkpoint.folder, source), target.checkpoint.folder)
    write(build.hollow(), folder)
    asked = any(name in export.options for name in DRAFTER_PATHS)
    return Written(build, folder, whole=not asked or source is not None)


def _compare(export: ExportFolder, written: Written, readable: bool, results: Results) -> None:
    """Graphs, weights, configuration, tokenizer and the list of files, one check each."""
    graphs = [graph for graph in export.graphs if (written.folder / graph.path.name).is_file()]
    faults = [fault for graph in graphs for fault in graph_faults(graph, written.folder)]
    names = ", ".join(graph.path.name for graph in graphs)
    _tell(export, GRAPHS, f"{names}: every node, attribute, type and place", faults, len(graphs), results)
    if readable:
        found = weight_faults(export, written.build.package, written.folder)
        what = f"{found.count} initializers, {readable_size(found.size)}, byte for byte what the checkpoints give"
        _tell(export, WEIGHTS, what, found.faults, found.count, results)
    faults = list(config_faults(export, written.folder / CONFIG, written.whole))
    _tell(export, CONFIGURATION, f"{CONFIG}, key by key", faults, 1, results)
    texts = other_files(export, written.folder)
    faults = list(text_faults(export, written.folder, texts))
    what = f"{', '.join(texts) or 'none'}: byte for byte"
    _tell(export, TOKENIZER, what, faults, None, results)
    faults = list(manifest_faults(export, written.folder, written.whole))
    _tell(export, OPTIONS, f"{MANIFEST}: options, versions and notes of the same plan", faults, 1, results)


def _tell(export: ExportFolder, name: str, what: str, faults: list[str], count: int | None, results: Results) -> None:
    """In an export by this version a difference is a fault; in another version's, it may be a change since then."""
    assert export.manifest is not None
    version = export.manifest.data.get("version")
    if faults and version != __version__:
        why = f"not compared: version {version} wrote other files than {__version__} would, such as"
        results.incomplete(name, f"{why}\n{listed(faults)}")
    else:
        results.stated(name, what, listed(faults).splitlines(), count)
