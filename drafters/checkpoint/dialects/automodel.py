"""NeMo Automodel: ``dflash_config`` under architecture names of its own. Its DSpark is DeepSpec's, word for word."""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Bound, Dialect, Windows, by_architecture
from drafters.checkpoint.kinds import Family

_ARCHITECTURES = {Family.DFLASH: ("Qwen3DFlashDraftModel",), Family.DFLASH2: ("Qwen3DFlash2DraftModel",)}

# Which of its releases leave out what they were trained with, and where it would stand.
_UNSAID = (
    "NeMo Automodel 0.7 trains with the window that its recipe names (draft_sliding_window), and for some targets does "
    "not write it: no layer slides by this file. If the recipe named one, add layer_types (sliding_attention), "
    "sliding_window and use_sliding_window: true to config.json, or drafts will be poor beyond the window"
)

DIALECT = Dialect(
    name="NeMo Automodel",
    sources=("the package nemo_automodel 0.7.0",),
    keeps="dflash_config",
    recognised=by_architecture(*(name for names in _ARCHITECTURES.values() for name in names)),
    architectures=_ARCHITECTURES,
    capture="hooks on the layers",
    windows=Windows(Bound.ROW, causal="all or none as `causal` says, else those that slide"),
    block_size="`dflash_config`, also the top level",
    rotary="`rope_parameters`",
    unsaid_window=_UNSAID,
)
