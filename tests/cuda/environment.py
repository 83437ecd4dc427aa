"""The environment of the stand-in CUDA device: GPU builds of the runtimes, and libraries in place of CUDA's.

It lies in the user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``, under ``draftsmith``), takes about a minute and
a download of 260 MB once, and is made anew when the versions in ``requirements.txt`` or the sources in ``device/``
change. ``python -m tests.cuda.environment`` makes it and says where it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onnxkit.systems import on_linux, system
from tests.cuda.libraries import DEVICE, build_libraries, run

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
DONE = "complete"  # a file that is written last: a folder without it is a rest of a run that was killed
UNUSED_DAYS = 30


@dataclass(frozen=True)
class Environment:
    """Where things are.

    Attributes:
        python: The interpreter that has the GPU builds of onnxruntime and onnxruntime-genai.
        libraries: The folder with ``libcudart.so.13`` and the others, for ``LD_LIBRARY_PATH``.
    """

    python: Path
    libraries: Path


def environment() -> Environment:
    """The environment, made first if it is missing or out of date.

    Raises:
        RuntimeError: This is no Linux; or a package cannot be installed or a source not compiled, and the message has
            the command's output.
    """
    if not on_linux():
        raise RuntimeError(f"the stand-in for a CUDA device takes the place of Linux's libraries; this is {system()}")
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    runtimes = cache / f"cuda-runtimes-{_digest(REQUIREMENTS)}"
    libraries = cache / f"cuda-device-{_digest(REQUIREMENTS, *_sources())}"
    with _locked(cache / "cuda.lock"):
        _make(runtimes, _install)
        _make(libraries, lambda folder: build_libraries(folder, _site_packages(runtimes)))
        for folder in cache.glob("cuda-*-*"):
            if time.time() - folder.stat().st_mtime > UNUSED_DAYS * 86400:
                shutil.rmtree(folder)
    return Environment(runtimes / "bin" / "python", libraries)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftsmith"


def _sources() -> list[Path]:
    return [*sorted(DEVICE.iterdir()), Path(__file__).with_name("libraries.py")]


def _digest(*files: Path) -> str:
    """A name for the contents of files and for this Python, whose packages the environment has."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sys.base_prefix}".encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes; the kernel takes the lock back however a process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder unless it is complete, and note that it was used."""
    if not (folder / DONE).exists():
        if folder.exists():
            shutil.rmtree(folder)
        fill(folder)
        (folder / DONE).touch()
    os.utime(folder)


def _install(folder: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    run(*pip, "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--requirement", REQUIREMENTS)
    shutil.rmtree(_site_packages(folder) / "nvidia" / "cu13" / "lib")  # preload_dlls() would find it


def _site_packages(runtimes: Path) -> Path:
    return next(runtimes.glob("lib/python3*/site-packages"))


if __name__ == "__main__":
    print(f"the stand-in CUDA device is in {environment().libraries}")
