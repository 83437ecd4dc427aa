"""What to type to install the packages of an extra. Draftsmith is not on any package index: its name is not enough."""

from __future__ import annotations

import re
from importlib import metadata

# If the metadata cannot be read, as in a copy of the sources that was never installed.
_PLAIN = {
    "cpu": ("onnxruntime", "onnxruntime-genai"),
    "cuda": ("onnxruntime-gpu[cuda,cudnn]", "onnxruntime-genai-cuda", "nvidia-cublas"),
    "verify": ("torch", "transformers"),
}


def install(*extras: str) -> str:
    """The command that installs some extras: from the repository, and as plain packages if one has only the wheel."""
    packages = " ".join(f"'{package}'" for extra in extras for package in _packages(extra))
    return f"pip install '.[{','.join(extras)}]' in Draftsmith's repository; anywhere else: pip install {packages}"


def _packages(extra: str) -> list[str]:
    """The packages of an extra, with the versions that it requires."""
    try:
        own = metadata.packages_distributions().get("draftsmith", [])
        required = [line for name in own[:1] for line in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        required = []
    found = []
    for line in required:
        package, _, condition = line.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", condition):
            found.append(package.strip())
    return found or list(_PLAIN[extra])
