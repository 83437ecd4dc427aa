"""The folders that a request's checkpoints are in. Those on the Hub are judged by their headers, then downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.hub import DRAFTER_FILES, TARGET_FILES, Snapshot, check_room, complete, look
from builder.hub_name import HubName
from builder.hub_preview import folder_in, lay_out, told_of
from builder.options import BuildOptions
from builder.output import OutputFolder

Judge = Callable[[BuildOptions, Path, frozenset[Path]], object]


def located(options: BuildOptions, judge: Judge) -> tuple[BuildOptions, Path]:
    """The same request with the drafter's folder in place of its name on the Hub, and the target's folder.

    Args:
        options: The request.
        judge: Raises what is wrong with a request, given the target's folder, and of all folders those that hold the
            headers of weights alone. It is called before weights are downloaded.

    Raises:
        ExportError: A checkpoint cannot be had, or what ``judge`` raises.
    """
    named = options.drafter
    if options.model is None and not isinstance(named, HubName):
        assert options.input is not None  # BuildOptions sees to it
        return options, options.input
    OutputFolder(options.output, [])  # an output that cannot be is refused before anything is downloaded
    target = look(options.model, options.cache_dir, TARGET_FILES) if options.model else None
    drafter = None
    if isinstance(named, HubName):
        drafter = look(named, options.cache_dir, DRAFTER_FILES, f"--extra_options {_option(options)}")
    if waiting := [snapshot for snapshot in (target, drafter) if snapshot and snapshot.missing]:
        _judge(options, target, drafter, judge)
        check_room(waiting)
    folder = complete(target) if target else options.input
    assert folder is not None
    return (with_drafter(options, complete(drafter)) if drafter else options), folder


def with_drafter(options: BuildOptions, folder: Path) -> BuildOptions:
    """The same request with a folder as its drafter."""
    changes: dict[str, Any] = {_option(options): folder}
    return replace(options, **changes)


def _option(options: BuildOptions) -> str:
    """The name of the option that names the drafter."""
    assert options.drafter_option is not None
    return options.drafter_option.name


def _judge(options: BuildOptions, target: Snapshot | None, drafter: Snapshot | None, judge: Judge) -> None:
    """Judge a request by the headers of files not downloaded yet. If they cannot be read, the download will say why."""
    with ExitStack() as stack:
        places: dict[Path, Path] = {}
        folders: dict[str, Path] = {}
        for role, snapshot in {"target": target, "drafter": drafter}.items():
            if snapshot is None:
                continue
            folders[role] = snapshot.folder
            if snapshot.missing:
                with suppress(OSError):  # no temporary folder
                    work = stack.enter_context(tempfile.TemporaryDirectory(prefix="draftsmith-headers-"))
                    folders[role] = folder_in(work, role)
                if folders[role] == snapshot.folder or not lay_out(snapshot, folders[role]):
                    return
                places[folders[role]] = snapshot.folder
        if "drafter" in folders:
            options = with_drafter(options, folders["drafter"])
        with told_of(places):
            judge(options, folders.get("target") or options.input or Path(), frozenset(places))
