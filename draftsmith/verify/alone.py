"""The target alone: an export that has a drafter, without it."""

from __future__ import annotations

import json
from pathlib import Path

from draftsmith.verify.folder import CONFIG, DRAFTERS


def without_drafter(export: Path, copy: Path) -> Path:
    """Make a new folder that holds the export without its drafter. Its files are links to the export's."""
    copy.mkdir()
    config = json.loads((export / CONFIG).read_text(encoding="utf-8"))
    for role in DRAFTERS:
        config["model"].pop(role, None)
    for path in export.iterdir():
        if path.is_file() and path.name != CONFIG:
            (copy / path.name).symlink_to(path.resolve())
    (copy / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    return copy
