"""NeMo Automodel: ``dflash_config`` under architecture names of its own. Its DSpark is DeepSpec's, word for word.

It captures the target's layers by hooks on them, so that a tap on the last one is the stream before the final norm.
"""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Dialect, architecture
from onnxkit.json_object import JsonObject

ARCHITECTURES = ("Qwen3DFlashDraftModel", "Qwen3DFlash2DraftModel")

# Which of its releases leave out what they were trained with, and where it would stand.
_UNSAID = (
    "NeMo Automodel 0.7 trains with the window that its recipe names (draft_sliding_window), and for some targets does "
    "not write it: no layer slides by this file. If the recipe named one, add layer_types (sliding_attention), "
    "sliding_window and use_sliding_window: true to config.json, or drafts will be poor beyond the window"
)


def _claims(config: JsonObject) -> str | None:
    found = architecture(config)
    return f"the architecture {found}" if found in ARCHITECTURES else None


DIALECT = Dialect(name="NeMo Automodel", homes="dflash_config", claims=_claims, unsaid_window=_UNSAID)
