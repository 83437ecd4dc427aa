"""What the proof needs besides the exporter: torch, transformers, and a CPU build of the runtime."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version

from draftsmith.install import install
from onnxkit.errors import ExportError

# The first CPU build that has a kernel for every operator of a lowered graph.
ONNXRUNTIME = (1, 32)


def silence_libraries() -> None:
    """Keep libraries from writing between a proof's lines; call it before importing them. Set variables stay."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def needs_runtime() -> None:
    """Check that everything is installed.

    Raises:
        ExportError: Something is missing, or the GPU build of onnxruntime is in its place.
    """
    missing = [
        name for name in ("torch", "transformers", "onnxruntime_genai") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ExportError(
            "Packages that the proof needs are not installed.",
            where="this Python environment",
            found=f"no {', '.join(missing)}",
            accepted="the extras cpu and verify",
            fix=f"{install('cpu', 'verify')}.",
        )
    found = _version("onnxruntime")
    if found is None or tuple(int(part) for part in found.split(".")[:2]) < ONNXRUNTIME:
        gpu = _version("onnxruntime-gpu")
        raise ExportError(
            "The proof runs on the CPU build of onnxruntime, which is not the one installed.",
            where="this Python environment",
            found=f"onnxruntime {found or 'not installed'}, onnxruntime-gpu {gpu or 'not installed'}",
            accepted=f"onnxruntime {ONNXRUNTIME[0]}.{ONNXRUNTIME[1]} or newer, without onnxruntime-gpu",
            fix=f"Make a second environment for the proof, and in it: {install('cpu', 'verify')}. Exports can stay.",
        )


def needs_reference() -> None:
    """Check that PyTorch and transformers are installed alongside the GPU builds of the runtime.

    Raises:
        ExportError: One of them is missing.
    """
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            "Packages that an export is compared with are not installed.",
            where="this Python environment",
            found=f"no {', '.join(missing)}",
            accepted="the extras cuda and verify",
            fix=f"{install('cuda', 'verify')}. PyTorch's build for the CPU will do, beside onnxruntime-gpu.",
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
