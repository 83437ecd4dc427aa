"""Runs the project's own commands in the environment of the stand-in device, as a user with a GPU would."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cuda.environment import environment
from tests.cuda.stand_in import TIMEOUT

ROOT = Path(__file__).parent.parent.parent
RUNTIMES = ("onnxruntime", "nvidia")  # what the two environments have of their own


@contextmanager
def _packages(own: Path) -> Iterator[Path]:
    """A folder with this environment's packages, but for those that the other one has."""
    with tempfile.TemporaryDirectory(prefix="draftsmith-packages-") as folder:
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not (own / path.name).exists() and not path.name.startswith(RUNTIMES):
                (Path(folder) / path.name).symlink_to(path)
        yield Path(folder)


def run_tool(
    *arguments: object, capability: int = 90, cuda: bool = True, text: str | None = None, timeout: float = TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` there.

    Args:
        arguments: What follows ``python``.
        capability: The compute capability of the device, without its point.
        cuda: Whether there are a driver and CUDA's libraries; onnxruntime's GPU build is there in any case.
        text: Standard input.
        timeout: Seconds that it may take.
    """
    place = environment()
    own = next(place.python.parent.parent.glob("lib/python3*/site-packages"))
    with _packages(own) as packages:
        variables = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)]),
            "LD_LIBRARY_PATH": str(place.libraries) if cuda else "",
            "STANDIN_CUDA_SM": str(capability),
        }
        return subprocess.run(
            [str(word) for word in (place.python, *arguments)],
            env=os.environ | variables,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=ROOT,
        )
