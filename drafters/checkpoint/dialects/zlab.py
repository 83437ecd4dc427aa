"""z-lab and Inco: ``dflash_config``; generation 1 keeps ``block_size`` and the rotary keys at the top level, generation
2 in sections; the export for Muse is flat and names the fused taps' weights otherwise."""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Dialect, architecture
from onnxkit.json_object import JsonObject

_ARCHITECTURES = ("DFlash2DraftModel", "DFlashDraftModel", "MuseGlimmerAssistantModel")


def _claims(config: JsonObject) -> str | None:
    found = architecture(config)
    return f"the architecture {found}" if found in _ARCHITECTURES else None


DIALECT = Dialect(
    name="z-lab / Inco",
    homes="dflash_config; generation 1: block_size at the top level; Muse: flat",
    claims=_claims,
    marks=(r"^encoder\.(fc|output_norm_enc)\.weight$",),
    prefixes=("model.",),
    normed_last_tap=True,
    aliases={"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."},
)
