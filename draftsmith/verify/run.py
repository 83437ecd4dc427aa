"""The whole proof of an export, check by check."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from draftsmith.validation.reference import operator_epsilon
from draftsmith.validation.widen import dropped_keys
from draftsmith.verify.chat_template import check_chat_template
from draftsmith.verify.checks import Results
from draftsmith.verify.contract import check_contract
from draftsmith.verify.copies import COPIES, LOWERED, Copy
from draftsmith.verify.drafter import check_drafter
from draftsmith.verify.engine import check_runtime
from draftsmith.verify.files import check_files
from draftsmith.verify.folder import ExportFolder, open_export
from draftsmith.verify.hub_sources import facts
from draftsmith.verify.machine import no_machine_trouble
from draftsmith.verify.planned import check_planned
from draftsmith.verify.running import Running
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
from onnxkit.weights.checkpoint import Checkpoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proof:
    """What is proved, with what it was made from (if given), and where the checks go.

    ``readable`` says whether every tensor lies inside its file, so that checks may read them.
    """

    export: ExportFolder
    target: Target | None
    drafter: DrafterSource | None
    results: Results
    readable: bool = True


def verify(
    folder: Path,
    target_folder: Path | None,
    drafter_folder: Path | None,
    results: Results,
    run: bool = True,
    provider: str = "cpu",
) -> ExportFolder:
    """Check an export and return it, opened. Its files are not touched: a copy is run.

    Args:
        folder: The export.
        target_folder: The checkpoint of its target; without it, comparisons with it are left out.
        drafter_folder: The checkpoint of its drafter; the same.
        results: Where the checks go.
        run: Whether to run its graphs as well; otherwise only files are compared.
        provider: ``cpu`` runs a copy lowered to float32, ``cuda`` the export as it is stored, on a GPU.

    Raises:
        ExportError: A folder is not what it should be, so there is nothing to check, or the machine is at fault.
    """
    results.figures["checkpoints"] = {"target": target_folder, "drafter": drafter_folder}
    with no_machine_trouble():
        export = open_export(folder)
        results.figures["facts"] = list(facts(export, {"target": target_folder, "drafter": drafter_folder}))
        target = open_target(target_folder, export) if target_folder else None
        drafter = None
        if drafter_folder and export.drafter:
            drafter = open_drafter(drafter_folder, export.drafter, target, export.options)
        if drafter_folder and export.drafter is None:
            Checkpoint(drafter_folder, "--drafter")  # a path that is not a folder is the caller's mistake
            fault = "genai_config.json has no drafter, so nothing was compared with what --drafter names"
            results.stated("drafter", f"a drafter of {drafter_folder}", [fault])
        prove(export, target, drafter, results, run, COPIES[provider])
    return export


def prove(
    export: ExportFolder,
    target: Target | None,
    drafter: DrafterSource | None,
    results: Results,
    run: bool = True,
    copy: Copy = LOWERED,
) -> None:
    """Check an open export against what it was made from.

    Args:
        export: The export.
        target: What its target was made from.
        drafter: What its drafter was made from.
        results: Where the checks go.
        run: Whether to run its graphs as well.
        copy: Which kind of copy is run.

    Raises:
        ExportError: The machine has no room for it, or such an export cannot be copied this way.
    """
    if run:
        copy.check(export, target)
    _log.info("checking: files and values")
    proof = Proof(export, target, drafter, results, check_files(export, results))
    for name, check in FILE_CHECKS:
        _log.info("checking: %s", name)
        with results.guarded(name):
            check(proof)
    if not proof.readable or not run:
        results.incomplete("numbers", "not run: " + ("only files were asked for" if proof.readable else "see files"))
        return
    with _copied(proof, copy) as running:
        if running is not None:
            for name, numbers in NUMBER_CHECKS:
                _log.info("running: %s", name)
                with results.guarded(name):
                    numbers(proof, running)


@contextmanager
def _copied(proof: Proof, copy: Copy) -> Iterator[Running | None]:
    """The copy that runs; None if none can be made, which is then reported."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="draftsmith-verify-")))
        running = None
        _log.info("making the copy that is run: %s", copy.name)
        with proof.results.guarded(copy.name):
            running = copy.make(proof.export, work)
        if proof.export.packed:  # the reference then uses a packed graph's own epsilon
            stack.enter_context(operator_epsilon())
        yield running


# --- the checks, in order ---


def _planned(proof: Proof) -> None:
    check_planned(proof.export, proof.target, proof.drafter, proof.readable, proof.results)


def _sources(proof: Proof) -> None:
    if proof.target is None:
        proof.results.incomplete("target's config.json", "not compared: its checkpoint is not given (--target)")
    else:
        check_target_source(proof.export, proof.target, proof.results)


def _drafter_sources(proof: Proof) -> None:
    if proof.export.drafter is None:
        return
    if proof.drafter is None:
        proof.results.incomplete("drafter's config.json", "not compared: its checkpoint is not given (--drafter)")
    else:
        check_drafter_source(proof.export, proof.drafter, proof.results)


def _shared(proof: Proof) -> None:
    if proof.export.drafter is not None and proof.target is not None and proof.readable:
        check_shared_bytes(proof.export, proof.target, proof.drafter, proof.results)


def _foreign(proof: Proof) -> None:
    """What is in the configuration and is not run here."""
    if left := dropped_keys(proof.export.config):
        proof.results.incomplete("left out", f"not compared and not run: {', '.join(left)}")


def _target(proof: Proof, running: Running) -> None:
    if proof.target is None:
        proof.results.incomplete("logits", "not compared: the target's checkpoint is not given (--target)")
    else:
        check_target(proof.export, running, proof.target, _streams(proof, proof.target), proof.results)


def _drafter(proof: Proof, running: Running) -> None:
    if proof.export.drafter is None:
        return
    if proof.target is None or proof.drafter is None:
        missing = " and ".join(["--target"] * (proof.target is None) + ["--drafter"] * (proof.drafter is None))
        proof.results.incomplete("drafter scores", f"not compared: a checkpoint is not given ({missing})")
    else:
        check_drafter(proof.export, running, proof.target, proof.drafter, proof.results)


def _streams(proof: Proof, target: Target) -> tuple[int, ...]:
    """Which of the target's streams the taps should be: the drafter's checkpoint knows best."""
    if proof.drafter is not None:
        return target.streams_of(proof.drafter.config.taps, proof.drafter.last_tap)
    taps = proof.export.asked_taps
    if proof.export.drafter is not None:
        taps = tuple(proof.export.drafter.section.get("aux_hidden_state_layers", ()))
    return target.streams_of(taps, proof.export.options.get("last_tap"))


def _chat_template(proof: Proof) -> None:
    check_chat_template(proof.export.path, proof.target.checkpoint if proof.target else None, proof.results)


# Checks of the folder's files, and of what is run. To add one, add a line here.
FILE_CHECKS: list[tuple[str, Callable[[Proof], None]]] = [
    ("contract", lambda proof: check_contract(proof.export, proof.results)),
    ("chat template", _chat_template),
    ("what would be written", _planned),
    ("target's config.json", _sources),
    ("drafter's config.json", _drafter_sources),
    ("shared tensors", _shared),
    ("left out", _foreign),
]
NUMBER_CHECKS: list[tuple[str, Callable[[Proof, Running], None]]] = [
    ("logits", _target),
    ("drafter scores", _drafter),
    ("runtime", lambda proof, running: check_runtime(proof.export, running, proof.target, proof.results)),
]
