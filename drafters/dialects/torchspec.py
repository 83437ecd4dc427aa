"""TorchSpec: flat keys, names of its own for the fused taps, and no block size, which only its trainer knew."""

from __future__ import annotations

from drafters.dialects.dialect import Dialect
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Use


def _claims(config: JsonObject) -> str | None:
    found = "target_num_hidden_layers" in config and config.data.get("model_type") == "dflash"
    return "model_type dflash and target_num_hidden_layers" if found else None


DIALECT = Dialect(
    name="TorchSpec",
    homes="flat",
    claims=_claims,
    marks=(r"(^|\.)context_proj\.weight$",),
    prefixes=("draft_model.",),
    aliases={"context_proj.": "fc.", "context_norm.": "hidden_norm.", "final_norm.": "norm."},
    renames={"num_target_layers": "num_taps", "target_num_hidden_layers": "num_target_layers"},
    keys=(
        Key("num_taps", Use.CHECKED, "the number of taps; TorchSpec writes it as num_target_layers", own=True),
        Key("target_num_hidden_layers", Use.CHECKED, "the target's layers, as num_target_layers of other producers"),
    ),
)
