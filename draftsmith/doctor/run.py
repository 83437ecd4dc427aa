"""All checks of ``draftsmith doctor``."""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
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
from draftsmith.doctor.export import check_graph, check_memory, check_versions, provider, shortened
from draftsmith.doctor.findings import Findings
from draftsmith.environment import needs_runtime
from draftsmith.install import install
from draftsmith.verify.folder import CONFIG, ExportFolder, open_export
from onnxkit import __version__
from onnxkit.errors import ExportError
from onnxkit.systems import on_linux, system

_TIMEOUT = 600  # seconds for the graphs of an export; they take a few


def doctor(folder: Path | None, findings: Findings, *, environment: Environment | None = None) -> None:
    """Check whether the installed runtime runs on this machine, and whether it runs an export.

    Args:
        folder: The export, or None.
        findings: Where what was found goes.
        environment: What is installed; looked up if not given.

    Raises:
        ExportError: The folder is not an export.
    """
    export = open_export(folder) if folder else None
    environment = environment or look()
    _figures(environment, findings)
    cuda = provider(export) == "cuda" if export else environment.cuda
    ready = _look_at_packages(environment, cuda, findings)
    _look_at_proof(findings)
    if cuda and environment.cuda:
        ready = _look_at_machine(environment, findings) and ready
    else:
        findings.skipped("GPU", _why_no_gpu(environment, export))
        ready = False
    ready = ready and _run_kernel(findings)
    if export is not None:
        check_versions(export, _version(export, environment), findings)
        _load_graphs(export, environment, ready, findings)


def _why_no_gpu(environment: Environment, export: ExportFolder | None) -> str:
    if export is not None and provider(export) != "cuda":
        return "the export is for the CPU"
    if not on_linux():
        return f"not looked for: drivers and GPUs are found on Linux only, and this is {system()}"
    return f"{environment.modules[0]} does not use one"


def _figures(environment: Environment, findings: Findings) -> None:
    """What was found, for the JSON."""
    driver = environment.driver
    findings.figures |= {
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


def _look_at_packages(environment: Environment, cuda: bool, findings: Findings) -> bool:
    what = ", ".join(map(str, environment.modules))

    def check_cpu() -> None:
        for module in environment.modules:
            check_single(module)
            _check_installed(module)

    return findings.checked("packages", what, (lambda: check_modules(environment)) if cuda else check_cpu)


def _check_installed(module: Module) -> None:
    if not module.distributions:
        raise ExportError(
            f"{module.needs.module} is not installed.",
            where="this Python environment",
            found=str(module),
            accepted="the extra cuda, if exports are to run on a GPU; the extra cpu, for the CPU and for the proof",
            fix=f"For a GPU: {install('cuda')}. For the CPU: {install('cpu')}. One of the two.",
        )


def _look_at_proof(findings: Findings) -> None:
    """The proof has packages of its own; without them everything else works."""
    try:
        needs_runtime()
    except ExportError as error:
        details = error.details
        findings.skipped("the proof on the CPU", f"{details['found']}; it needs {details['accepted']}")
    else:
        findings.note("the proof on the CPU", "what verify and speculate need is installed")


def _look_at_machine(environment: Environment, findings: Findings) -> bool:
    """What CUDA needs besides the packages."""
    found = sum(not isinstance(place, OSError) for place in environment.libraries.values())
    libraries = findings.checked(
        "CUDA libraries",
        f"{found} of {len(environment.libraries)} found",
        lambda: check_libraries(environment),
    )
    driver = environment.driver
    what = f"for CUDA {dotted(driver.cuda)}" if isinstance(driver, Driver) else "not found"
    if not findings.checked("driver", what, lambda: check_driver(environment)):
        findings.skipped("GPU", "the driver would tell")
        return False
    assert isinstance(driver, Driver)
    what = "; ".join(map(str, driver.gpus)) or "none"
    return findings.checked("GPU", what, lambda: check_gpu(environment)) and libraries


def _run_kernel(findings: Findings) -> bool:
    """Let the runtime run a small kernel on the GPU."""
    try:
        found, said = run_probe({})
    except RuntimeError as failure:
        found, said = {"kernel": str(failure)}, []
    error = found["kernel"]
    return findings.note("kernel on the GPU", "one is run by onnxruntime", [shortened(error), *said] if error else [])


def run_probe(task: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Carry out a task in a separate process; returns what was found, and the errors that the runtime printed.

    If a part of CUDA does not work, only these give the reason: the runtime falls back to the CPU.

    Raises:
        RuntimeError: The process crashed, hung, or could not import the runtime.
    """
    command = [sys.executable, "-m", "draftsmith.doctor.probe", json.dumps(task)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"onnxruntime did not answer within {_TIMEOUT} s") from error
    lines = done.stderr.strip().splitlines()
    if done.returncode < 0:
        last = "; ".join(lines[-2:])
        raise RuntimeError(f"onnxruntime has crashed ({signal.Signals(-done.returncode).name}) {last}".strip())
    if done.returncode:
        raise RuntimeError(f"onnxruntime cannot be used: {lines[-1] if lines else 'no message'}")
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    said = [line.split("] ", 1)[-1] for line in lines if "[E:onnxruntime" in line]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, said


def _load_graphs(export: ExportFolder, environment: Environment, cuda: bool, findings: Findings) -> None:
    """Let the runtime load the configuration and each graph, for the GPU if one is ready."""
    if not all(module.distributions for module in environment.modules):
        findings.skipped("graphs", "there is no runtime to load them")
        return
    task = {"cuda": cuda, "folder": str(export.path), "graphs": [graph.path.name for graph in export.graphs]}
    try:
        found, _ = run_probe(task)
    except RuntimeError as error:
        findings.note("graphs", "not loaded", [str(error)])
        return
    findings.note(CONFIG, "read by onnxruntime-genai", [found["config"]] if found["config"] else [])
    for graph in export.graphs:
        check_graph(export, graph, found["graphs"][graph.path.name], cuda, findings)
    driver = environment.driver
    if cuda and isinstance(driver, Driver):
        check_memory(export, driver.gpus[0], findings)


def _version(export: ExportFolder, environment: Environment) -> str:
    """The version of onnxruntime that is to run the export: that of its newest GPU build, if that is not installed."""
    distributions = environment.modules[0].distributions
    newest = dotted(ONNXRUNTIME.oldest)
    if provider(export) == "cuda":
        return distributions.get(ONNXRUNTIME.package, newest)
    return next(iter(distributions.values()), newest)
