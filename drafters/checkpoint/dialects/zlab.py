"""z-lab and Inco. A first generation of their releases keeps ``block_size`` and the rotary keys at the top level, the
second one and all DFlash 2 releases keep them in sections; the export for Muse is flat."""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Bound, Dialect, Layout, Rope, Windows, by_architecture, words
from drafters.checkpoint.kinds import Family

_ARCHITECTURES = {
    Family.DFLASH: ("DFlashDraftModel",),
    Family.DFLASH2: ("DFlash2DraftModel", "MuseGlimmerAssistantModel"),
}

_OWN = "block_size mask_token_id target_layer_ids conv_kernel_size conv_group_size selector_rank selector_top_k"

DIALECT = Dialect(
    name="z-lab / Inco",
    sources=("the package dflash 0.1.0", "github.com/z-lab/dflash at 44947fb", "released configurations"),
    keeps="dflash_config; in its first generation block_size at the top level; for Muse all at the top level",
    recognised=by_architecture(*(name for names in _ARCHITECTURES.values() for name in names)),
    architectures=_ARCHITECTURES,
    aliases={"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."},
    marks=("encoder.fc.weight", "encoder.output_norm_enc.weight"),
    capture="transformers' `hidden_states`, the last of which is the final norm's output",
    normed_last_tap=True,
    windows=Windows(Bound.ROW, causal="all or none as `is_causal` says, else those that slide"),
    block_size="`dflash_config`; at the top level in the first generation",
    rotary="`rope_parameters`; in the first generation `rope_theta` and `rope_scaling`; plain or YaRN",
    layout=Layout(
        section="dflash_config",
        own=words(f"{_OWN} input_embedding_scale output_multiplier final_logit_softcapping"),
        top=("is_causal",),
        rope=Rope.PARAMETERS,
        always={"dtype": "bfloat16"},
    ),
)
