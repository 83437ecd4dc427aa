"""Doing a fault to a copy of a good export, and what of verify catches it."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from builder.cli import main as build
from draftsmith.verify.checks import Check, Results, Verdict
from draftsmith.verify.folder import ExportFolder, open_export
from draftsmith.verify.planned import AS_WRITTEN
from draftsmith.verify.run import prove
from draftsmith.verify.sources import DrafterSource, Target, open_drafter, open_target
from onnxkit.errors import ExportError
from tests.faults import Fault

PAIR = Path(__file__).parent.parent / "assets" / "pair"


class Caught(BaseException):
    """A check has failed: the rest need not run. (No Exception, which a check would take for its own.)"""


@dataclass
class Pair:
    """A good export and what it was made from."""

    kind: str
    export: Path
    target: Target
    drafter: DrafterSource


def make_pair(work: Path, kind: str, assets: Path = PAIR, target: Target | None = None) -> Pair:
    """Export the bundled pair; ``windowed`` is the DFlash 2 drafter told that it slides."""
    source = assets / ("dspark" if kind == "dspark" else "dflash2")
    if kind == "windowed":
        source = shutil.copytree(source, work / "windowed-drafter")
        config = json.loads((source / "config.json").read_text())
        layers = ["sliding_attention"] * config["num_hidden_layers"]
        config |= {"layer_types": layers, "sliding_window": 40, "use_sliding_window": True}
        (source / "config.json").write_text(json.dumps(config))
    export = work / kind
    options = ["--extra_options", f"drafter_path={source}", "context_length=1024"]
    assert build(["-i", str(assets / "target"), "-o", str(export), "-p", "bf16", "-e", "cuda", *options]) == 0
    opened = open_export(export)
    assert opened.drafter is not None
    target = target or open_target(assets / "target", opened)
    return Pair(kind, export, target, open_drafter(source, opened.drafter, target))


@dataclass(frozen=True)
class Catch:
    """What catches a fault: the first check that compares with what would be written, and the first other one."""

    written: str | None
    otherwise: str | None

    def __bool__(self) -> bool:
        return bool(self.written or self.otherwise)


def caught_by(pair: Pair, folder: Path, run: bool = True) -> Catch:
    """What catches the faults of an export: all checks of its files, then, with ``run``, those of its numbers."""
    results = Results(lambda check: None)
    try:
        export = open_export(folder)
        prove(export, pair.target, pair.drafter, results, run=False)
    except ExportError as error:
        return Catch(None, f"refused: {error.problem}")
    failed = [check.name for check in results.failed]
    written = next((name for name in failed if name in AS_WRITTEN), None)
    otherwise = next((name for name in failed if name not in AS_WRITTEN), None)
    if run and otherwise is None:
        otherwise = _numbers_that_fail(pair, export)
    return Catch(written, otherwise)


def _numbers_that_fail(pair: Pair, export: ExportFolder) -> str | None:
    """The first check that fails when the graphs are run, those that compare with what would be written aside."""

    def tell(check: Check) -> None:
        if check.verdict is Verdict.FAILED and check.name not in AS_WRITTEN:
            raise Caught(check.name)

    try:
        prove(export, pair.target, pair.drafter, Results(tell))
    except Caught as caught:
        return str(caught)
    except ExportError as error:
        return f"refused: {error.problem}"
    return None


def try_fault(pair: Pair, fault: Fault, run: bool = True) -> Catch:
    """Do a fault to a copy of a good export; gives what catches it."""
    with tempfile.TemporaryDirectory(prefix="draftsmith-fault-") as work:
        folder = shutil.copytree(pair.export, Path(work) / "export")
        fault.apply(folder)
        return caught_by(pair, folder, run)
