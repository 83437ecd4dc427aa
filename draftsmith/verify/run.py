"""The whole proof of an export, check by check."""

from __future__ import annotations

import tempfile
from pathlib import Path

from draftsmith.validation.reference import operator_epsilon
from draftsmith.validation.widen import widen
from draftsmith.verify.chat_template import check_chat_template
from draftsmith.verify.checks import Results
from draftsmith.verify.contract import check_contract
from draftsmith.verify.drafter import check_drafter
from draftsmith.verify.engine import check_runtime
from draftsmith.verify.files import check_files
from draftsmith.verify.folder import ExportFolder, open_export
from draftsmith.verify.sources import (
    DrafterSource,
    Target,
    check_drafter_source,
    check_shared_bytes,
    check_target_source,
    open_drafter,
    open_target,
)
from draftsmith.verify.target import check_target


def verify(folder: Path, target_folder: Path | None, drafter_folder: Path | None, results: Results) -> ExportFolder:
    """Check an export; gives it, opened. Its files are not touched: what runs is a lowered copy.

    Args:
        folder: The export.
        target_folder: The checkpoint of its target; without it, comparisons with it are skipped.
        drafter_folder: The checkpoint of its drafter; the same.
        results: Where the checks go.

    Raises:
        ExportError: A folder is not what it should be, so that there is nothing to check.
    """
    export = open_export(folder)
    target = open_target(target_folder, export) if target_folder else None
    drafter = (
        open_drafter(drafter_folder, export.drafter, target, export.options)
        if drafter_folder and export.drafter
        else None
    )
    prove(export, target, drafter, results)
    return export


def prove(export: ExportFolder, target: Target | None, drafter: DrafterSource | None, results: Results) -> None:
    """Check an export that is open, beside what it was made from."""
    readable = check_files(export, results)
    check_contract(export, results)
    check_chat_template(export.path, target.checkpoint if target else None, results)
    _check_sources(export, target, drafter, readable, results)
    if not readable:
        results.skipped("numbers", "not every tensor can be read")
        return
    with tempfile.TemporaryDirectory(prefix="draftsmith-verify-") as work:
        low = Path(work) / "low"
        with results.guarded("lowering"):
            widen(export.path, low)
        if low.is_dir():
            _check_numbers(export, low, target, drafter, results)


def _check_sources(
    export: ExportFolder, target: Target | None, drafter: DrafterSource | None, readable: bool, results: Results
) -> None:
    if target is None:
        results.skipped("target's config.json", "the target's checkpoint is not given (--target)")
    else:
        with results.guarded("target's config.json"):
            check_target_source(export, target, results)
    if export.drafter is None:
        return
    if drafter is None:
        results.skipped("drafter's config.json", "the drafter's checkpoint is not given (--drafter)")
    else:
        with results.guarded("drafter's config.json"):
            check_drafter_source(export, drafter, results)
    if target is not None and readable:
        with results.guarded("shared tensors"):
            check_shared_bytes(export, target, drafter, results)


def _check_numbers(
    export: ExportFolder, low: Path, target: Target | None, drafter: DrafterSource | None, results: Results
) -> None:
    """The graphs in onnxruntime and in the runtime. A packed graph's own epsilon is the reference's there, too."""
    if export.packed:
        with operator_epsilon():
            _check_graphs(export, low, target, drafter, results)
    else:
        _check_graphs(export, low, target, drafter, results)


def _check_graphs(
    export: ExportFolder, low: Path, target: Target | None, drafter: DrafterSource | None, results: Results
) -> None:
    if target is None:
        results.skipped("logits", "the target's checkpoint is not given (--target)")
    else:
        with results.guarded("logits"):
            check_target(export, low, target, _streams(export, target, drafter), results)
    if export.drafter:
        if target is None or drafter is None:
            missing = " and ".join(["--target"] * (target is None) + ["--drafter"] * (drafter is None))
            results.skipped("drafter scores", f"its checkpoint or the target's is not given ({missing})")
        else:
            with results.guarded("drafter scores"):
                check_drafter(export, low, target, drafter, results)
    with results.guarded("Engine" if export.packed else "Generator"):
        check_runtime(export, low, target, results)


def _streams(export: ExportFolder, target: Target, drafter: DrafterSource | None) -> tuple[int, ...]:
    """Which of the target's streams the taps should be: the drafter's checkpoint knows best."""
    if drafter is not None:
        return target.streams_of(drafter.config.taps, drafter.last_tap)
    taps = export.asked_taps
    if export.drafter is not None:
        taps = tuple(export.drafter.section.get("aux_hidden_state_layers", ()))
    return target.streams_of(taps, export.options.get("last_tap"))
