"""All checks of ``draftsmith doctor``."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.cuda_driver import Driver
from draftsmith.cuda_runtime import (
    ONNXRUNTIME,
    Environment,
    Module,
    check_driver,
    check_gpu,
    check_libraries,
    check_modules,
    check_single,
    dotted,
    look,
)
from draftsmith.doctor.export import check_graph, check_memory, check_versions, provider
from draftsmith.environment import needs_runtime
from draftsmith.verify.checks import Results
from draftsmith.verify.folder import CONFIG, ExportFolder, open_export
from onnxkit import __version__
from onnxkit.errors import ExportError

_TIMEOUT = 600  # seconds for the graphs of an export; they take a few


def doctor(folder: Path | None, results: Results, *, environment: Environment | None = None) -> None:
    """See whether the runtime that is installed runs on this machine, and whether it runs an export.

    Args:
        folder: The export, or None.
        results: Where the checks go.
        environment: What is installed; looked for where it is not given.

    Raises:
        ExportError: The folder is no export.
    """
    export = open_export(folder) if folder else None
    environment = environment or look()
    _figures(environment, results)
    cuda = provider(export) == "cuda" if export else environment.cuda
    ready = _check_modules(environment, cuda, results)
    _check_proof(results)
    if cuda and environment.cuda:
        ready = _check_machine(environment, results) and ready
    else:
        results.skipped("GPU", _why_no_gpu(environment, export))
        ready = False
    found = None
    if all(module.distributions for module in environment.modules):
        found = _probe(export, ready, results)
    if export is not None:
        _check_export(export, environment, found, ready, results)


def _why_no_gpu(environment: Environment, export: ExportFolder | None) -> str:
    if export is not None and provider(export) != "cuda":
        return "the export is for the CPU"
    return f"{environment.modules[0]} does not use one"


def _figures(environment: Environment, results: Results) -> None:
    """What was found, for the JSON."""
    driver = environment.driver
    results.figures |= {
        "draftsmith": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for module in environment.modules for name, version in module.distributions.items()},
        "libraries": {
            name: None if isinstance(found, OSError) else str(found) for name, found in environment.libraries.items()
        },
        "driver": {"cuda": dotted(driver.cuda)} if isinstance(driver, Driver) else None,
        "gpus": [
            {"name": gpu.name, "compute_capability": dotted(gpu.capability), "memory": gpu.memory}
            for gpu in (driver.gpus if isinstance(driver, Driver) else ())
        ],
    }


def _stated(results: Results, name: str, what: str, *checks: Callable[[], object]) -> bool:
    """Note a check that raises where there is a fault; gives whether there was none."""
    for check in checks:
        try:
            check()
        except ExportError as error:
            results.stated(name, what, str(error).splitlines())
            return False
    results.stated(name, what, [])
    return True


def _check_modules(environment: Environment, cuda: bool, results: Results) -> bool:
    what = ", ".join(map(str, environment.modules))

    def check_cpu() -> None:
        for module in environment.modules:
            check_single(module)
            _check_installed(module)

    return _stated(results, "packages", what, (lambda: check_modules(environment)) if cuda else check_cpu)


def _check_installed(module: Module) -> None:
    if not module.distributions:
        raise ExportError(
            f"{module.needs.module} is not installed.",
            where="this Python environment",
            found=str(module),
            accepted="the extra cuda, where exports are to run on a GPU; the extra cpu, for the CPU and for the proof",
            fix="pip install 'draftsmith[cuda]', or 'draftsmith[cpu]'; one of the two.",
        )


def _check_proof(results: Results) -> None:
    """The proof has packages of its own; without them everything else works."""
    try:
        needs_runtime()
    except ExportError as error:
        details = error.details
        results.skipped("verify and speculate", f"{details['found']}; they need {details['accepted']}")
    else:
        results.stated("verify and speculate", "what they need is installed", [])


def _check_machine(environment: Environment, results: Results) -> bool:
    """What CUDA needs beside the packages."""
    found = sum(not isinstance(place, OSError) for place in environment.libraries.values())
    libraries = _stated(
        results,
        "CUDA libraries",
        f"{found} of {len(environment.libraries)} found",
        lambda: check_libraries(environment),
    )
    driver = environment.driver
    what = f"for CUDA {dotted(driver.cuda)}" if isinstance(driver, Driver) else "not found"
    if not _stated(results, "driver", what, lambda: check_driver(environment)):
        results.skipped("GPU", "the driver would tell")
        return False
    assert isinstance(driver, Driver)
    what = "; ".join(map(str, driver.gpus)) or "none"
    return _stated(results, "GPU", what, lambda: check_gpu(environment)) and libraries


def _probe(export: ExportFolder | None, cuda: bool, results: Results) -> dict[str, Any] | None:
    """Let the runtime load what there is to load, and run a kernel."""
    if export is None and not cuda:
        return None
    graphs = [graph.path.name for graph in export.graphs] if export else []
    task = {"cuda": cuda, "folder": str(export.path) if export else None, "graphs": graphs}
    try:
        found, said = run_probe(task)
    except RuntimeError as error:
        results.stated("onnxruntime", "is started in a process of its own", [str(error)])
        return None
    if cuda:
        results.stated("kernel on the GPU", "one is run by onnxruntime", _reasons(found["trial"], said))
    return found


def _reasons(error: str | None, said: Sequence[str]) -> list[str]:
    """An error of the runtime, and what it printed before: where CUDA fails, the reason is there alone."""
    return [] if error is None else [error, *said]


def run_probe(task: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Carry out a task in a process of its own; gives the findings and the runtime's own error messages.

    Raises:
        RuntimeError: The process crashed, hung, or could not import the runtime.
    """
    command = [sys.executable, "-m", "draftsmith.doctor.probe", json.dumps(task)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"onnxruntime has not answered in {_TIMEOUT} s") from error
    lines = done.stderr.strip().splitlines()
    if done.returncode < 0:
        last = "; ".join(lines[-2:])
        raise RuntimeError(f"onnxruntime has crashed ({signal.Signals(-done.returncode).name}) {last}".strip())
    if done.returncode:
        raise RuntimeError(f"onnxruntime cannot be used: {lines[-1] if lines else 'no message'}")
    said = [line.split("] ", 1)[-1] for line in lines if "[E:onnxruntime" in line]
    findings: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return findings, said


def _check_export(
    export: ExportFolder, environment: Environment, found: dict[str, Any] | None, cuda: bool, results: Results
) -> None:
    check_versions(export, _version(export, environment), results)
    if found is None:
        results.skipped("graphs", "there is no runtime that could load them")
        return
    results.stated(CONFIG, "read by onnxruntime-genai", [found["config"]] if found["config"] else [])
    for graph in export.graphs:
        check_graph(export, graph, found["graphs"][graph.path.name], cuda, results)
    driver = environment.driver
    if provider(export) == "cuda" and isinstance(driver, Driver) and driver.gpus:
        check_memory(export, driver.gpus[0], results)


def _version(export: ExportFolder, environment: Environment) -> str:
    """The version of onnxruntime that is to run the export: of its newest GPU build, where that is not installed."""
    distributions = environment.modules[0].distributions
    newest = dotted(ONNXRUNTIME.oldest)
    if provider(export) == "cuda":
        return distributions.get(ONNXRUNTIME.package, newest)
    return next(iter(distributions.values()), newest)
