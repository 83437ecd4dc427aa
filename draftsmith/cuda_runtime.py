"""What onnxruntime's CUDA builds need to run an export, and how much of it is present.

The facts below are for onnxruntime-gpu 1.31.1 and onnxruntime-genai-cuda 0.18.0: the libraries are those that their
shared objects name, the architectures those of the machine code in them. They hold no PTX, which a driver could
compile for a GPU that it was not built for.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from draftsmith.cuda_driver import LIBRARY as DRIVER_LIBRARY
from draftsmith.cuda_driver import Driver, DriverError, ask_driver
from draftsmith.install import install
from onnxkit.errors import ExportError
from onnxkit.systems import needs_linux

WHERE = "this Python environment"

CUDA = 13  # the major version that the packages are built for; a driver of this version or a newer one runs them
DRIVER = 580  # the first driver of that version


@dataclass(frozen=True)
class Requirement:
    """A package of the runtime, and its CUDA build.

    Attributes:
        module: What is imported.
        package: The distribution with the CUDA build.
        oldest: Its oldest version that runs exports.
        library: The shared object, in the module's folder, that the CPU build lacks.
    """

    module: str
    package: str
    oldest: tuple[int, ...]
    library: str


@dataclass(frozen=True)
class Library:
    """A CUDA library.

    Attributes:
        name: Its file's name.
        package: The distribution that brings it.
        genai_only: Whether onnxruntime itself works without it.
    """

    name: str
    package: str
    genai_only: bool = False


ONNXRUNTIME = Requirement("onnxruntime", "onnxruntime-gpu", (1, 31, 1), "capi/libonnxruntime_providers_cuda.so")
GENAI = Requirement("onnxruntime_genai", "onnxruntime-genai-cuda", (0, 18, 0), "libonnxruntime-genai-cuda.so")

# In the order in which they load one another.
LIBRARIES = (
    Library("libcublasLt.so.13", "nvidia-cublas"),
    Library("libcublas.so.13", "nvidia-cublas"),
    Library("libcurand.so.10", "nvidia-curand"),
    Library("libcufft.so.12", "nvidia-cufft", genai_only=True),
    Library("libcudart.so.13", "nvidia-cuda-runtime"),
)
_WHEELS = Path("nvidia", f"cu{CUDA}", "lib")  # within site-packages

# Machine code runs on the GPUs of its own major version that are not older. 7.5 also has code, but no bfloat16.
ARCHITECTURES = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))
GPUS = "8.x (Ampere, Ada), 9.0 (Hopper) or 12.x (Blackwell's GeForce and RTX PRO); 10.x (B200, B300) has no kernels"


@dataclass(frozen=True)
class Module:
    """A package of the runtime as it is installed.

    Attributes:
        needs: What is required of it.
        distributions: The distributions that bring it, by name, with their versions. More than one is a conflict.
        cuda: Whether the files of a CUDA build are in place.
    """

    needs: Requirement
    distributions: dict[str, str]
    cuda: bool

    def __str__(self) -> str:
        return (
            ", ".join(f"{name} {version}" for name, version in self.distributions.items()) or f"no {self.needs.module}"
        )


@dataclass(frozen=True)
class Environment:
    """What is installed, and what the machine has.

    Attributes:
        modules: onnxruntime and onnxruntime-genai.
        libraries: Where each of CUDA's libraries was found; an error in place of the path has ``OSError``'s text.
        driver: The driver, or why it does not answer.
    """

    modules: tuple[Module, Module]
    libraries: dict[str, Path | OSError]
    driver: Driver | DriverError

    @property
    def cuda(self) -> bool:
        """Whether a CUDA build of anything is installed, which means that this environment is for CUDA."""
        return any(module.cuda or module.needs.package in module.distributions for module in self.modules)


def look() -> Environment:
    """Find out what is here. CUDA's libraries stay loaded, as ``onnxruntime.preload_dlls()`` would leave them."""
    try:
        driver: Driver | DriverError = ask_driver()
    except DriverError as error:
        driver = error
    return Environment((find_module(ONNXRUNTIME), find_module(GENAI)), load_libraries(), driver)


def find_module(needs: Requirement) -> Module:
    """Which distributions bring a package of the runtime."""
    distributions = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.name or "").lower()
        if name.startswith(needs.module.replace("_", "-")) and _brings(distribution, needs.module):
            distributions[name] = distribution.version
    spec = importlib.util.find_spec(needs.module)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    cuda = any((Path(folder) / needs.library).is_file() for folder in folders)
    return Module(needs, dict(sorted(distributions.items())), cuda)


def _brings(distribution: importlib.metadata.Distribution, module: str) -> bool:
    """Whether a distribution has files in a module's folder: onnxruntime-extensions, for one, has none."""
    return any(file.parts[0] == module for file in distribution.files or ())


def load_libraries() -> dict[str, Path | OSError]:
    """Load CUDA's libraries from where the runtime would: NVIDIA's packages first, then the system's search path."""
    spec = importlib.util.find_spec(ONNXRUNTIME.module)
    folders = [Path(folder).parent / _WHEELS for folder in (spec.submodule_search_locations or ())] if spec else []
    return {library.name: _load(library.name, folders) for library in LIBRARIES}


def _load(name: str, folders: Iterable[Path]) -> Path | OSError:
    for place in [*(folder / name for folder in folders if (folder / name).is_file()), Path(name)]:
        try:
            ctypes.CDLL(str(place))
        except OSError as error:
            failure = error
        else:
            return place
    return failure


def check_modules(environment: Environment) -> None:
    """Check that the CUDA builds of onnxruntime and onnxruntime-genai are installed, alone, and new enough.

    Raises:
        ExportError: They are not, or this is not Linux, the only system whose libraries are known here.
    """
    needs_linux(
        "Exports run on a GPU",
        "the GPU builds and CUDA's libraries are looked for under the names that they have there",
        "Use a Linux machine with an NVIDIA GPU, or WSL 2 on Windows. On the CPU, verify also works here.",
    )
    for module in environment.modules:
        check_single(module)
        needs, accepted = module.needs, f"{module.needs.package} {dotted(module.needs.oldest)} or newer"
        if not module.distributions:
            raise ExportError(
                f"{needs.package} is not installed.",
                where=WHERE,
                found=str(module),
                accepted=accepted,
                fix=f"{install('cuda')}.",
            )
        if needs.package not in module.distributions:
            raise ExportError(
                f"{needs.module} is a build without CUDA.",
                where=WHERE,
                found=str(module),
                accepted=accepted,
                fix=f"Make a new environment, since this one serves verify as it is, and in it: {install('cuda')}.",
            )
        version = module.distributions[needs.package]
        if numbers(version) < needs.oldest:
            raise ExportError(
                f"{needs.package} is too old.",
                where=WHERE,
                found=str(module),
                accepted=accepted,
                fix=f"{install('cuda')}.",
            )
        if not module.cuda:
            raise ExportError(
                f"Files of {needs.package} are missing, as happens when another build of {needs.module} is removed.",
                where=WHERE,
                found=f"{module} without {needs.library}",
                accepted="all of its files",
                fix=f"pip install --force-reinstall --no-deps {needs.package}=={version}.",
            )


def check_single(module: Module) -> None:
    """Check that at most one distribution brings a package of the runtime.

    Raises:
        ExportError: Two do, and each has overwritten files of the other.
    """
    if len(module.distributions) > 1:
        names = " ".join(module.distributions)
        raise ExportError(
            f"Two builds of {module.needs.module} are installed over one another.",
            where=WHERE,
            found=str(module),
            accepted="one of them: they share a folder, and the last one has overwritten files of the other",
            fix=f"pip uninstall -y {names}; then {install('cuda')}; or the extra cpu, for the CPU.",
        )


def check_libraries(environment: Environment) -> None:
    """Check that CUDA's libraries can be loaded.

    Raises:
        ExportError: Some cannot.
    """
    errors = {name: found for name, found in environment.libraries.items() if isinstance(found, OSError)}
    if errors:
        packages = {library.package: None for library in LIBRARIES if library.name in errors}
        raise ExportError(
            f"{len(errors)} of CUDA's {len(LIBRARIES)} libraries cannot be loaded.",
            where=f"the folder {_WHEELS} of site-packages, and the system's search path (LD_LIBRARY_PATH)",
            found="\n".join(map(str, errors.values())),
            accepted=f"CUDA {CUDA}; any other major version has other libraries",
            fix=f"Missing here: {', '.join(packages)}. All of them: {install('cuda')}.",
        )


def check_driver(environment: Environment) -> None:
    """Check that the driver supports this version of CUDA.

    Raises:
        ExportError: There is no driver, or it is too old.
    """
    driver = environment.driver
    newest = f"NVIDIA's driver {DRIVER} or newer (CUDA {CUDA})"
    if isinstance(driver, DriverError):
        missing = "No such file" in str(driver)
        raise ExportError(
            "There is no NVIDIA driver." if missing else "NVIDIA's driver does not answer.",
            where=DRIVER_LIBRARY,
            found=driver,
            accepted=newest,
            fix="Install it on the host (no Python package brings it); start a container with docker run --gpus all."
            if missing
            else "Check that nvidia-smi works on this machine, in this container.",
        )
    if driver.cuda[0] < CUDA:
        raise ExportError(
            "NVIDIA's driver is too old.",
            where=DRIVER_LIBRARY,
            found=f"a driver for CUDA {dotted(driver.cuda)}",
            accepted=newest,
            fix="Update the driver on the host.",
        )


def check_gpu(environment: Environment) -> None:
    """Check that the packages have kernels for the first GPU, which the runtime uses.

    Raises:
        ExportError: There is no GPU, or they have none for it.
    """
    gpus = environment.driver.gpus if isinstance(environment.driver, Driver) else ()
    if not gpus:
        raise ExportError(
            "No GPU is visible.",
            where="NVIDIA's driver",
            found="no device",
            accepted=GPUS,
            fix="Check nvidia-smi, CUDA_VISIBLE_DEVICES, and how the container was started.",
        )
    if not has_kernels(gpus[0].capability) and not _newer_than_known(environment):
        other = next((index for index, gpu in enumerate(gpus) if has_kernels(gpu.capability)), None)
        raise ExportError(
            f"{ONNXRUNTIME.package} {dotted(ONNXRUNTIME.oldest)} has no kernels for this GPU.",
            where="GPU 0",
            found=gpus[0],
            accepted=f"compute capability {GPUS}",
            fix="Run on another GPU." if other is None else f"Set CUDA_VISIBLE_DEVICES={other}: {gpus[other]}.",
        )


def has_kernels(capability: tuple[int, int]) -> bool:
    """Whether the packages have machine code that runs on a GPU of this compute capability, for every export."""
    return any(major == capability[0] and minor <= capability[1] for major, minor in ARCHITECTURES)


def _newer_than_known(environment: Environment) -> bool:
    """Whether onnxruntime-gpu is newer than the table, so it may have kernels for more GPUs."""
    version = environment.modules[0].distributions.get(ONNXRUNTIME.package, "0")
    return numbers(version) > ONNXRUNTIME.oldest


CHECKS = (check_modules, check_libraries, check_driver, check_gpu)


def check_cuda() -> Environment:
    """Check that an export can run on a GPU here, before anything is loaded; returns what was found.

    CUDA's libraries are then loaded, so that ``onnxruntime`` and ``onnxruntime_genai`` find them.

    Raises:
        ExportError: Something is missing, too old or not supported; the message says what, and what to install.
    """
    environment = look()
    for check in CHECKS:
        check(environment)
    return environment


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version: ``1.31.1.dev3`` is ``(1, 31, 1)``."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def dotted(version: Iterable[int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))
