"""Checkpoints of a proof that come from the Hub: fetched for it, and listed in its report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builder.hub import DRAFTER_FILES, TARGET_FILES, fetch
from builder.hub_name import HubName
from builder.provenance import provenance
from draftsmith.verify.folder import ExportFolder, read_manifest

ROLES = {"target": TARGET_FILES, "drafter": DRAFTER_FILES}


def checkpoint_folder(source: Path | HubName | None, role: str, export: Path, cache_dir: Path | None) -> Path | None:
    """The folder of a checkpoint that an export is compared with.

    Args:
        source: A folder, or a repository. Without a revision it is the commit that the export was made from, if the
            export records one of this repository.
        role: ``target`` or ``drafter``.
        export: The export.
        cache_dir: Where to keep downloads from the Hub; None for the Hub's own cache.

    Raises:
        ExportError: The repository cannot be downloaded.
    """
    if not isinstance(source, HubName):
        return source
    made_from = recorded(read_manifest(export)).get(role, {})
    if source.revision is None and made_from.get("repository") == source.repository:
        source = source.at(str(made_from["commit"]))
    return fetch(source, cache_dir, ROLES[role], f"--{role}")


def recorded(manifest: Any) -> dict[str, dict[str, Any]]:
    """What ``draftsmith.json`` says about the checkpoints' origin; empty if it says nothing, or is damaged."""
    sources = manifest.data.get("sources") if manifest else None
    if not isinstance(sources, dict):
        return {}
    return {role: found for role, found in sources.items() if isinstance(found, dict) and "commit" in found}


def facts(export: ExportFolder, folders: dict[str, Path | None]) -> Iterator[tuple[str, str]]:
    """Rows for the report: which repositories the export was made from and compared with, and the Hub's hashes."""
    made_from = recorded(export.manifest)
    for role in ROLES:
        if made := made_from.get(role):
            yield f"{role} made from", f"{made.get('repository')} at commit {made['commit']}, on the Hub"
            files = made.get("files")
            hashes = [f"{name} {digest}" for name, digest in files.items()] if isinstance(files, dict) else []
            yield f"{role}'s files by the Hub's hashes", ", ".join(hashes) or "not known"
        folder = folders.get(role)
        if folder and (known := provenance(folder, ())):
            yield f"{role} compared with", f"{known.repository} at commit {known.commit}, on the Hub"
