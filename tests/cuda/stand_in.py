"""Runs exports on the stand-in device, and gives what the runtimes returned together with the device's log."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cuda.environment import environment
from tests.cuda.log import Record, Step, read_log, steps

RUNNER = Path(__file__).parent / "runner.py"
TIMEOUT = 300  # seconds; a run takes a few
PROMPTS, TOKENS = (300, 20), 24  # lengths of prompts, one of them beyond a page, and tokens to decode
ENDLESS = {"model": {"eos_token_id": [1]}}  # nothing is computed, so that all tokens are 0


class DeviceError(Exception):
    """A run ended with an error; the message has the end of its output."""


@dataclass(frozen=True)
class Run:
    """What a run gave.

    Attributes:
        result: What ``runner.py`` printed.
        records: The device's log.
    """

    result: dict[str, Any]
    records: list[Record]

    @property
    def steps(self) -> list[Step]:
        """The log between marks."""
        return steps(self.records)

    @property
    def refusals(self) -> list[Record]:
        """What the device did not take."""
        return [record for record in self.records if record["op"] == "refused"]


@dataclass(frozen=True)
class Device:
    """A device to stand in for.

    Attributes:
        capability: The compute capability without its point.
        memory: MiB.
        reject: Every how manieth token the runtime finds to differ from its draft; 0: none.
        variables: More environment variables, those of the runtimes for example.
    """

    capability: int = 90
    memory: int = 8192
    reject: int = 0
    variables: Mapping[str, str] | None = None

    def graphs(self, folder: Path) -> Run:
        """Run each graph of an export in a plain session that may not fall back to the CPU."""
        return self._run("graphs", folder, {})

    def engine(
        self, folder: Path, prompts: Sequence[int] = PROMPTS, tokens: int = TOKENS, overlay: Mapping[str, Any] = ENDLESS
    ) -> Run:
        """Decode in the Engine, ``tokens`` after each prompt of the lengths given, the configuration overlaid."""
        return self._run("engine", folder, {"prompts": prompts, "tokens": tokens, "overlay": overlay})

    def everything(self, folder: Path) -> Run:
        """Load the graphs with the CPU provider, run them alone, and decode in the Engine."""
        return self._run("all", folder, {"prompts": PROMPTS, "tokens": TOKENS, "overlay": ENDLESS})

    def load(self, folder: Path) -> Run:
        """Load each graph with the CPU provider."""
        return self._run("load", folder, {})

    def _run(self, task: str, folder: Path, options: Mapping[str, Any]) -> Run:
        place = environment()
        with tempfile.TemporaryDirectory(prefix="draftsmith-cuda-") as work:
            log = Path(work) / "log.jsonl"
            log.touch()
            done = subprocess.run(
                [place.python, RUNNER, task, folder, json.dumps(options)],
                env=os.environ | (self.variables or {}) | self._environment(place.libraries, log),
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
            if done.returncode:
                last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
                raise DeviceError(f"{task} of {folder} on sm{self.capability}, exit code {done.returncode}:\n{last}")
            return Run(json.loads(done.stdout.splitlines()[-1]), read_log(log))

    def _environment(self, libraries: Path, log: Path) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(libraries),
            "STANDIN_CUDA_SM": str(self.capability),
            "STANDIN_CUDA_MEMORY_MB": str(self.memory),
            "STANDIN_CUDA_REJECT": str(self.reject),
            "STANDIN_CUDA_LOG": str(log),
            "PYTHONPATH": "",
        }
