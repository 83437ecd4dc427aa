"""verl-SpeCo: TorchSpec's flat keys, with ``num_target_layers`` in its usual meaning, and common tensor names.

Trained from scratch, a drafter carries a copy of the target's embedding.
"""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Bound, Dialect, Windows
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Use, without_effect


def _recognised(config: JsonObject) -> str | None:
    return "num_context_layers" if "num_context_layers" in config else None


DIALECT = Dialect(
    name="verl-SpeCo",
    sources=("configurations that its own code wrote",),
    keeps="the top level",
    recognised=_recognised,
    architectures={Family.DFLASH: ("DFlashDraftModel",), Family.DSPARK: ("DSparkDraftModel",)},
    renames={"num_context_layers": "num_taps", "target_num_hidden_layers": "num_target_layers"},
    keys=(
        Key("num_context_layers", Use.CHECKED, "the number of taps", own=True),
        *without_effect("ce_loss_alpha l1_loss_alpha loss_decay_gamma", "training only"),
    ),
    windows=Windows(Bound.NONE, slides="none", causal="none"),
    block_size="the top level; of DFlash nowhere: `drafter_block_size` says it",
    rotary="`rope_theta`",
)
