"""Builds the libraries that stand in for CUDA's, from the sources in ``device/`` and from what the runtimes import."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

DEVICE = Path(__file__).parent / "device"

# Each library, and the sources of the functions that do something; all others that are imported become stubs.
LIBRARIES = {
    "libcudart.so.13": ("log", "device", "streams", "memory", "kernels"),
    "libcublas.so.13": ("cublas",),
    "libcublasLt.so.13": ("cublaslt",),
    "libcuda.so.1": ("driver",),
    "libcurand.so.10": (),
    "libcufft.so.12": (),
}
IMPORTERS = (
    "onnxruntime/capi/libonnxruntime_providers_cuda.so",
    "onnxruntime_genai/libonnxruntime-genai-cuda.so",
)
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror")

# Symbol versions are the libraries' names, as NVIDIA's have them. What C++ instantiates stays inside.
VERSIONS = "{library} {{ global: cu*; __cuda*; standin_*; local: *; }};\n"


def build_libraries(out: Path, site_packages: Path) -> None:
    """Build all of them into a folder.

    Args:
        out: The folder, which is made.
        site_packages: Where the GPU builds of the runtimes and CUDA's headers are installed.

    Raises:
        RuntimeError: A source does not compile, or a tool is missing.
    """
    out.mkdir(parents=True)
    wanted = imported(site_packages / path for path in IMPORTERS)
    unknown = wanted.keys() - LIBRARIES.keys()
    if unknown:
        raise RuntimeError(f"the runtimes import from libraries that nothing stands in for: {sorted(unknown)}")
    include = site_packages / "nvidia" / "cu13" / "include"
    for library, sources in LIBRARIES.items():
        objects = [_compile(DEVICE / f"{name}.cc", out, include) for name in sources]
        stubs = out / f"{library}.stubs.cc"
        stubs.write_text(_stubs(wanted[library] - defined(objects)))
        objects.append(_compile(stubs, out, include))
        versions = out / f"{library}.map"
        versions.write_text(VERSIONS.format(library=library))
        link = ["-shared", f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}", "-o", out / library, *objects]
        if library != "libcudart.so.13":
            link += [out / "libcudart.so.13"]  # the log is there
        run("g++", *link)


def imported(libraries: Iterable[Path]) -> dict[str, set[str]]:
    """The functions of CUDA that libraries import, by the library that they come from."""
    result: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        for line in run("nm", "-D", "--undefined-only", library).splitlines():
            found = re.fullmatch(r"(?P<name>(__)?cu\w+)(@(?P<library>\S+))?", line.split()[-1])
            if found:  # the driver's functions alone have no version
                result[found["library"] or "libcuda.so.1"].add(found["name"])
    return result


def defined(objects: Iterable[Path]) -> set[str]:
    """The functions that object files define."""
    text = "".join(run("nm", "-g", "--defined-only", path) for path in objects)
    return {line.split()[-1] for line in text.splitlines() if line.strip()}


def _stubs(names: Iterable[str]) -> str:
    """Functions that say that they were called and report success."""
    lines = [f'int {name}() {{ standin_stub("{name}"); return 0; }}' for name in sorted(names)]
    return "\n".join(['extern "C" {', "void standin_stub(const char* name);", *lines, "}", ""])


def _compile(source: Path, out: Path, include: Path) -> Path:
    target = out / f"{source.stem}.o"
    run("g++", *FLAGS, "-isystem", include, "-c", source, "-o", target)
    return target


def run(*command: object) -> str:
    """The output of a command.

    Raises:
        RuntimeError: It fails, or is not there.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise RuntimeError(f"{words[0]} is not installed; scripts/test.sh installs all that the tests need") from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout
