"""What the report says about a proof besides its checks: when it was made, of what, and with which versions."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from draftsmith.verify.checks import Results
from draftsmith.verify.folder import ExportFolder
from onnxkit import __version__

# What produces the numbers of a proof. Of the runtime's builds for the CPU and for CUDA, one is installed.
PACKAGES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-genai",
    "onnxruntime-genai-cuda",
    "onnx",
    "torch",
    "transformers",
)

Fact = tuple[str, str]


def facts(export: ExportFolder, results: Results, when: datetime) -> list[Fact]:
    """The rows of the first table, in order; entries of ``results.figures["facts"]`` come last.

    Args:
        export: The export.
        results: Its proof.
        when: The time of the proof.
    """
    return [
        ("proved", f"{when:%Y-%m-%d %H:%M %Z}".strip()),
        *_checkpoints(export, results),
        *_shape(export),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions())),
        *results.figures.get("facts", []),
    ]


def versions() -> list[tuple[str, str]]:
    """The packages that a proof runs on, as they are installed here."""
    found = [("draftsmith", __version__), ("Python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found


def _checkpoints(export: ExportFolder, results: Results) -> Iterator[Fact]:
    """The names of what the export was compared with: a folder's, preceded by its parent folder's."""
    folders: dict[str, Path | None] = results.figures.get("checkpoints", {})
    for name, title in (("target", "target checkpoint"), ("drafter", "drafter checkpoint")):
        if name == "drafter" and export.drafter is None:
            continue
        folder = folders.get(name)
        yield title, "/".join(folder.resolve().parts[-2:]).lstrip("/") if folder else f"not given (--{name})"


def _shape(export: ExportFolder) -> Iterator[Fact]:
    model, drafter = export.config["model"], export.drafter
    layers = export.decoder.section.get("num_hidden_layers")
    yield "target", f"{layers} layers, vocabulary of {model.get('vocab_size')}"
    if drafter:
        drafts, rows = (drafter.section.get(key) for key in ("num_draft_tokens", "block_size"))
        yield "drafter", f"{drafter.role}, {drafts} drafts from blocks of {rows} rows"
    made = export.manifest.data if export.manifest else {}
    kinds = [str(made[key]) for key in ("precision", "execution_provider") if key in made]
    yield "layout", ", ".join(["packed, for the Engine" if export.packed else "dense, for the Generator", *kinds])
    yield "context", f"{model.get('context_length')} tokens"
