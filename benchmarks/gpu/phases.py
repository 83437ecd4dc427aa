"""Phases of a check: commands that run one after another, each with its own time, whose failures are noted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
Json = dict[str, Any]

ERROR_CHARACTERS = 2000  # of the end of a failed phase's output


@dataclass(frozen=True)
class Phase:
    """One phase.

    Attributes:
        name: Its name.
        command: What is run, in the project's folder. Its last line of output is its result where that is JSON.
        seconds: The most that it may take.
        after: Phases without which it is not begun.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """How a phase ended, for the report, and what it gave."""

    entry: Json
    result: Any = None


def run_phase(phase: Phase, left: float, well: Collection[str]) -> Done:
    """Run a phase.

    Args:
        phase: The phase.
        left: Seconds that are left of all phases' time.
        well: The phases that ended well.
    """
    entry: Json = {"name": phase.name, "status": "skipped", "seconds": 0.0, "limit_s": phase.seconds}
    missing = [name for name in phase.after if name not in well]
    if missing:
        return Done(entry | {"error": f"not begun without: {', '.join(missing)}"})
    if left <= 1:
        return Done(entry | {"error": "no time is left"})
    start = time.monotonic()
    status, output, error = _run(phase.command, min(phase.seconds, left))
    entry |= {"seconds": round(time.monotonic() - start, 1)}
    entry["status"] = "timed out" if status is None else "ok" if status == 0 else "failed"
    if status != 0:
        entry["error"] = (error or output)[-ERROR_CHARACTERS:].strip()
    return Done(entry, _result(output))


def _run(command: tuple[str, ...], seconds: float) -> tuple[int | None, str, str]:
    """Exit status (None where time ran out), output and errors. Children of a process that is ended end with it."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, start_new_session=True)
        except OSError as error:
            return 127, "", str(error)
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read()


def _result(output: str) -> Any:
    lines = output.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def finished(report: Json) -> bool:
    """Whether all phases so far ended well, and all proofs passed."""
    return all(entry["status"] == "ok" for entry in report["phases"])
