"""NeMo Automodel: ``dflash_config`` under an architecture name of its own."""

from __future__ import annotations

from drafters.dialects.dialect import Dialect, architecture
from onnxkit.json_object import JsonObject

ARCHITECTURE = "Qwen3DFlashDraftModel"


def _claims(config: JsonObject) -> str | None:
    return f"the architecture {ARCHITECTURE}" if architecture(config) == ARCHITECTURE else None


DIALECT = Dialect(name="NeMo Automodel", homes="dflash_config", claims=_claims)
