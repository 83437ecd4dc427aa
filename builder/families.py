"""The target families. A new one is an entry here."""

from __future__ import annotations

from builder.family import Target, TargetFamily
from builder.qwen35.family import QWEN35
from onnxkit.json_object import JsonObject
from onnxkit.weights.checkpoint import Checkpoint

FAMILIES: tuple[TargetFamily, ...] = (QWEN35,)


def family_of(config: JsonObject) -> TargetFamily | None:
    """The family whose architecture a ``config.json`` declares; None if no family has it."""
    declared = config.strings("architectures", default=())
    return next((family for family in FAMILIES if set(declared) & set(family.architectures)), None)


def open_target(checkpoint: Checkpoint) -> Target:
    """Open and check a target's checkpoint of any family.

    Raises:
        ExportError: It is of no family, or its configuration, names or norms are not what the family takes.
    """
    family = family_of(checkpoint.config) or FAMILIES[0]  # which then says what it takes
    return family.open(checkpoint)
