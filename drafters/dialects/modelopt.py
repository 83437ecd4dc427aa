"""NVIDIA ModelOpt: ``DFlashDraftModel`` whatever the kind, a Markov head without a name of its own, and ``use_swa``."""

from __future__ import annotations

from drafters.dialects.dialect import Dialect, any_key
from onnxkit.json_object import JsonObject
from onnxkit.key_table import without_effect


def _claims(config: JsonObject) -> str | None:
    return any_key(config, "use_confidence_head", "use_swa", "swa_window_size", "shift_label", "has_embed_tokens")


DIALECT = Dialect(
    name="NVIDIA ModelOpt",
    homes="dflash_config; block_size also at the top level",
    claims=_claims,
    marks=(r"^(model\.)?markov_w[12]\.weight$", r"^(model\.)?confidence_proj\.weight$"),
    prefixes=("model.",),
    aliases={
        "markov_w1.": "markov_head.markov_w1.",
        "markov_w2.": "markov_head.markov_w2.",
        "gate_proj.": "markov_head.gate_proj.",
        "joint_proj.": "markov_head.joint_proj.",
        "confidence_proj.": "confidence_head.proj.",
    },
    theta_in_doubt=10000.0,  # a class default that the exporter of some releases saw before the real value
    keys=tuple(without_effect("dflash_export_rope_scaling producer", "how it was exported")),
)
