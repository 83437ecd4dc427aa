"""SpecForge: ``dflash_config`` (``dspark_config`` in a release of RadixArk's), ``block_size`` at the top level."""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Dialect, any_key, architecture
from onnxkit.json_object import JsonObject


def _claims(config: JsonObject) -> str | None:
    if architecture(config) == "DSparkDraftModel":
        return "the architecture DSparkDraftModel"
    mirrored = "rope_theta" in config and "rope_parameters" in config and "dflash_config" in config
    found = any_key(config, "projector_type", "attention_mode", "dspark_config", "confidence_head_alpha")
    return found or ("rope_theta beside rope_parameters, which it mirrors" if mirrored else None)


DIALECT = Dialect(
    name="SpecForge",
    homes="dflash_config or dspark_config; block_size at the top level",
    claims=_claims,
    marks=(r"^logit_head\.",),
    prefixes=("draft_model.", "logit_head."),
)
