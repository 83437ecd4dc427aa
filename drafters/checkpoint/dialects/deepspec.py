"""DeepSpec: a deep copy of the target's config with flat keys, ``Qwen3DSparkModel`` with and without a Markov head."""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Dialect, architecture
from onnxkit.json_object import JsonObject

ARCHITECTURE = "Qwen3DSparkModel"


def _claims(config: JsonObject) -> str | None:
    if architecture(config) == ARCHITECTURE and "target_layer_ids" in config:
        return f"the architecture {ARCHITECTURE} with flat keys"
    return "num_anchors beside flat keys" if "num_anchors" in config and "target_layer_ids" in config else None


DIALECT = Dialect(
    name="DeepSpec",
    homes="flat, beside a copy of the target's keys",
    claims=_claims,
    normed_last_tap=True,
)
