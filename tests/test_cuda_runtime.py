"""What is said where a part of CUDA is missing, too old, or of the wrong kind: environments that are made up."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import sys
from ctypes.util import find_library
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from draftsmith.cuda_driver import Driver, DriverError, Gpu, ask_driver
from draftsmith.cuda_runtime import (
    CHECKS,
    GENAI,
    LIBRARIES,
    ONNXRUNTIME,
    Environment,
    Module,
    Requirement,
    check_gpu,
    has_kernels,
    numbers,
)
from onnxkit.errors import ExportError

ROOT = Path(__file__).parent.parent
H100 = Gpu("H100", (9, 0), 80 << 30)
B200 = Gpu("B200", (10, 0), 180 << 30)
T4 = Gpu("T4", (7, 5), 16 << 30)

GOOD = Environment(
    (
        Module(ONNXRUNTIME, {"onnxruntime-gpu": "1.31.1"}, cuda=True),
        Module(GENAI, {"onnxruntime-genai-cuda": "0.18.0"}, cuda=True),
    ),
    {library.name: Path(library.name) for library in LIBRARIES},
    Driver((13, 0), (H100,)),
)


def with_modules(first: dict[str, str], second: dict[str, str] | None = None, cuda: bool = True) -> Environment:
    genai = GOOD.modules[1] if second is None else replace(GOOD.modules[1], distributions=second)
    return replace(GOOD, modules=(Module(ONNXRUNTIME, first, cuda), genai))


def with_gpus(*gpus: Gpu, cuda: tuple[int, int] = (13, 0)) -> Environment:
    return replace(GOOD, driver=Driver(cuda, gpus))


def message(environment: Environment) -> str:
    """What the first check that fails says; empty where none does."""
    for check in CHECKS:
        try:
            check(environment)
        except ExportError as error:
            return str(error)
    return ""


def test_nothing_is_wrong() -> None:
    assert message(GOOD) == ""


NO_DRIVER = DriverError("libcuda.so.1: cannot open shared object file: No such file or directory")
BROKEN_DRIVER = DriverError("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)")
TWO_MISSING = GOOD.libraries | {name: OSError(f"{name}: not found") for name in ("libcufft.so.12", "libcublas.so.13")}


@pytest.mark.parametrize(
    ("environment", "parts"),
    [
        (
            with_modules({}, {}),
            ["onnxruntime-gpu is not installed", "no onnxruntime", "pip install '.[cuda]'"],
        ),
        (
            with_modules({"onnxruntime-gpu": "1.31.1"}, {}),
            ["onnxruntime-genai-cuda is not installed", "pip install '.[cuda]'"],
        ),
        (
            with_modules({"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}),
            ["Two builds of onnxruntime", "pip uninstall -y onnxruntime onnxruntime-gpu", "pip install '.[cuda]'"],
        ),
        (
            with_modules(
                {"onnxruntime-gpu": "1.31.1"}, {"onnxruntime-genai": "0.18.0", "onnxruntime-genai-cuda": "0.18.0"}
            ),
            ["Two builds of onnxruntime_genai", "pip uninstall -y onnxruntime-genai onnxruntime-genai-cuda"],
        ),
        (
            with_modules({"onnxruntime": "1.32.0"}, cuda=False),
            ["a build without CUDA", "onnxruntime 1.32.0", "new environment"],
        ),
        (
            with_modules({"onnxruntime-gpu": "1.30.0"}),
            ["onnxruntime-gpu is too old", "onnxruntime-gpu 1.30.0", "onnxruntime-gpu 1.31.1 or newer"],
        ),
        (
            with_modules({"onnxruntime-gpu": "1.31.1"}, {"onnxruntime-genai-cuda": "0.17.1"}),
            ["onnxruntime-genai-cuda is too old", "0.17.1", "0.18.0 or newer"],
        ),
        (
            with_modules({"onnxruntime-gpu": "1.31.1"}, cuda=False),
            ["Files of onnxruntime-gpu are missing", "--force-reinstall --no-deps onnxruntime-gpu==1.31.1"],
        ),
        (
            replace(GOOD, libraries=TWO_MISSING),
            ["2 of CUDA's 5 libraries", "libcufft.so.12: not found", "Missing here: nvidia-cublas, nvidia-cufft"],
        ),
        (
            replace(GOOD, driver=NO_DRIVER),
            ["There is no NVIDIA driver", "driver 580 or newer", "docker run --gpus all"],
        ),
        (
            replace(GOOD, driver=BROKEN_DRIVER),
            ["does not answer", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "nvidia-smi"],
        ),
        (
            with_gpus(H100, cuda=(12, 4)),
            ["driver is too old", "a driver for CUDA 12.4", "driver 580 or newer (CUDA 13)"],
        ),
        (with_gpus(), ["No GPU is visible", "CUDA_VISIBLE_DEVICES"]),
        (with_gpus(B200), ["onnxruntime-gpu 1.31.1 has no kernels", "B200, compute capability 10.0", "another GPU"]),
        (with_gpus(T4), ["has no kernels", "T4, compute capability 7.5", "Ampere"]),
        (with_gpus(T4, H100), ["T4", "Set CUDA_VISIBLE_DEVICES=1: H100"]),
    ],
)
def test_each_says_what_is_wrong_and_what_to_do(environment: Environment, parts: list[str]) -> None:
    found = message(environment)
    assert all(part in found for part in parts), found


def test_gpus_with_kernels() -> None:
    """Machine code runs on newer GPUs of its major version, and on no other."""
    assert [c for c in ((8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (12, 0), (12, 1)) if not has_kernels(c)] == []
    assert [c for c in ((7, 0), (7, 5), (10, 0), (10, 3), (11, 0), (13, 0)) if has_kernels(c)] == []


def test_a_newer_runtime_may_have_kernels_for_more() -> None:
    """There the table says nothing, and a kernel that is run has the last word."""
    newer = (Module(ONNXRUNTIME, {"onnxruntime-gpu": "1.33.0"}, cuda=True), GOOD.modules[1])
    check_gpu(replace(with_gpus(B200), modules=newer))


def test_versions() -> None:
    assert numbers("1.31.1.dev20260101001") == (1, 31, 1) and numbers("0.18.0rc1") == (0, 18, 0)
    assert numbers("1.9.0") < numbers("1.31.1") and numbers("unknown") == ()


@dataclass
class FakeDriver:
    """libcuda with one GPU. ``fails``: the function that answers with an error."""

    fails: str = ""
    code: int = 100
    error: bytes = b"CUDA_ERROR_NO_DEVICE"

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.fails:
                return self.code
            targets = [argument._obj for argument in arguments if hasattr(argument, "_obj")]
            if name == "cuDeviceGetName":
                arguments[0].value = b"H100"
            elif name == "cuDeviceGetAttribute":
                targets[0].value = {75: 9, 76: 0}[arguments[1]]
            elif name == "cuGetErrorName":
                targets[0].value = self.error
            elif targets:
                answers = {"cuDriverGetVersion": 13020, "cuDeviceGetCount": 1, "cuDeviceGet": 0}
                targets[0].value = answers.get(name, 80 << 30)
            return 0

        return call


def test_the_driver_is_asked() -> None:
    assert ask_driver(lambda name: FakeDriver()) == Driver((13, 2), (H100,))


def test_a_driver_without_a_gpu() -> None:
    assert ask_driver(lambda name: FakeDriver(fails="cuInit")) == Driver((13, 2), ())


def test_a_driver_that_does_not_work() -> None:
    broken = FakeDriver(fails="cuInit", code=999, error=b"CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError, match=r"cuInit: CUDA_ERROR_UNKNOWN \(999\)"):
        ask_driver(lambda name: broken)


def test_no_driver() -> None:
    with pytest.raises(DriverError, match="no-such-library"):
        ask_driver(lambda name: ctypes.CDLL("no-such-library.so"))


class Packages:
    """A folder of packages that looks installed, for a Python that has no others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, needs: Requirement, distribution: str, version: str, *, cuda: bool) -> None:
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{needs.module}/__init__.py,,\n")
        files = [f"{needs.module}/__init__.py", *([f"{needs.module}/{needs.library}"] if cuda else [])]
        for file in files:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).touch()

    def add_libraries(self, *names: str) -> None:
        folder = self.folder / "nvidia" / "cu13" / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(math.__file__, folder / name)  # any shared library

    def check(self) -> str:
        """What ``check_cuda`` says there."""
        script = "from draftsmith.cuda_runtime import check_cuda\ntry:\n check_cuda()\nexcept Exception as e: print(e)"
        done = subprocess.run(
            [sys.executable, "-S", "-c", script],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]), "LD_LIBRARY_PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    return Packages(tmp_path / "packages")


def test_packages_are_found(packages: Packages) -> None:
    assert "onnxruntime-gpu is not installed" in packages.check()
    packages.add(ONNXRUNTIME, "onnxruntime-gpu", "1.30.0", cuda=True)
    assert "onnxruntime-gpu 1.30.0" in packages.check()
    packages.add(ONNXRUNTIME, "onnxruntime", "1.32.0", cuda=False)
    assert "onnxruntime 1.32.0, onnxruntime-gpu 1.30.0" in packages.check()


def test_a_package_whose_name_begins_alike(packages: Packages) -> None:
    packages.add(ONNXRUNTIME, "onnxruntime-gpu", "1.31.1", cuda=True)
    packages.add(replace(ONNXRUNTIME, module="onnxruntime_extensions"), "onnxruntime-extensions", "0.15.0", cuda=False)
    assert "onnxruntime-genai-cuda is not installed" in packages.check()


def test_libraries_are_found_in_nvidias_packages(packages: Packages) -> None:
    packages.add(ONNXRUNTIME, "onnxruntime-gpu", "1.31.1", cuda=True)
    packages.add(GENAI, "onnxruntime-genai-cuda", "0.18.0", cuda=True)
    first, *others = [library.name for library in LIBRARIES]
    packages.add_libraries(*others)
    if not find_library("cublasLt"):
        found = packages.check()
        assert "1 of CUDA's 5 libraries cannot be loaded" in found and "Missing here: nvidia-cublas." in found
    packages.add_libraries(first)
    assert "cannot be loaded" not in packages.check()
