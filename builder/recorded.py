"""The request that an export records in ``draftsmith.json``, read again: what the export was asked for."""

from __future__ import annotations

from pathlib import Path

from builder.option import written
from builder.option_table import DRAFTER_PATHS, OPTIONS, parse_extra_options
from builder.options import BuildOptions
from onnxkit.json_object import JsonObject


def recorded_request(manifest: JsonObject, target: Path, drafter: Path | None) -> BuildOptions:
    """The request of an export, for checkpoints that may lie elsewhere by now.

    Args:
        manifest: ``draftsmith.json``.
        target: The target's checkpoint.
        drafter: The drafter's; None leaves the drafter out of a request that has one.

    Raises:
        ExportError: What is recorded is no request.
    """
    options = dict(manifest.section("options").data)
    paths = [name for name in DRAFTER_PATHS if options.pop(name, None) is not None]
    if paths and drafter is None:
        of_drafters = {option.name for option in OPTIONS if option.scope.kinds}
        options = {name: value for name, value in options.items() if name not in of_drafters}
    if paths and drafter is not None:
        options[paths[0]] = drafter
    return BuildOptions(
        output=Path(),
        precision=manifest.string("precision"),
        provider=manifest.string("execution_provider"),
        input=target,
        **parse_extra_options([f"{name}={written(value)}" for name, value in options.items()]),
    )
