"""Writing a planned build: its graphs, their configuration, the tokenizer, and the list of all files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from builder.option_table import OPTIONS
from builder.output import LAST, MANIFEST
from builder.package import save_package
from builder.plan import Plan
from builder.provenance import recorded_name, sources
from onnxkit import __version__

_log = logging.getLogger(__name__)


def write(build: Plan, folder: Path, progress: Callable[[int], object] | None = None) -> dict[str, int]:
    """Write all files of a planned build to an empty folder: the same plan, the same bytes. Gives their sizes."""
    shares = save_package(build.package, folder, progress)
    config = build.config.sharing(shares) if len(shares) > 1 else build.config
    (folder / LAST).write_text(config.to_json(), encoding="utf-8")
    build.tokenizer.write(folder)
    _log.info("%s and the tokenizer's files", LAST)
    return _write_manifest(folder, build)


def _write_manifest(staging: Path, build: Plan) -> dict[str, int]:
    """Write the list of the folder's files, by which a later export knows that it may replace them."""
    files = {path.name: path.stat().st_size for path in sorted(staging.iterdir())}
    options = build.options
    manifest = {
        "tool": "draftsmith",
        "version": __version__,
        "precision": options.precision,
        "execution_provider": options.provider,
        "options": _held(build) | {"context_length": build.resolved.context_length},
        "files": files,
        "notes": build.notes,
    }
    if known := sources(build.package.checkpoints):
        manifest["sources"] = known
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    data = text.encode(errors="backslashreplace")  # a path may hold bytes that are no text; JSON writes them so
    (staging / MANIFEST).write_bytes(data)
    return files | {MANIFEST: len(data)}


def _held(build: Plan) -> dict[str, object]:
    """The options that hold, without those left to others."""
    values = {option.name: getattr(build.options, option.name) for option in OPTIONS} | build.resolved.recorded()
    held = {name: value for name, value in values.items() if value not in (None, ())}
    return {name: recorded_name(value) if isinstance(value, Path) else value for name, value in held.items()}
