"""verl-SpeCo: TorchSpec's flat keys, with ``num_target_layers`` in its usual meaning, and common tensor names.

Trained from scratch, a drafter carries a copy of the target's embedding.
"""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Dialect
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Use, without_effect


def _claims(config: JsonObject) -> str | None:
    return "num_context_layers" if "num_context_layers" in config else None


DIALECT = Dialect(
    name="verl-SpeCo",
    homes="flat",
    claims=_claims,
    renames={"num_context_layers": "num_taps", "target_num_hidden_layers": "num_target_layers"},
    keys=(
        Key("num_context_layers", Use.CHECKED, "the number of taps", own=True),
        *without_effect("ce_loss_alpha l1_loss_alpha loss_decay_gamma", "training only"),
    ),
)
