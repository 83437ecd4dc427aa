"""SpecForge. A release of RadixArk's keeps the drafter's own keys in ``dspark_config`` and at the top level; early
exports nest the heads' tensors once more."""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Bound, Dialect, Layout, Rope, Windows, any_key, architecture, words
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Use, without_effect

_DSPARK = "DSparkDraftModel"


def _recognised(config: JsonObject) -> str | None:
    if architecture(config) == _DSPARK:
        return f"the architecture {_DSPARK}"
    mirrored = "rope_theta" in config and "rope_parameters" in config and "dflash_config" in config
    found = any_key(config, "projector_type", "attention_mode", "dspark_config", "confidence_head_alpha")
    return found or ("rope_theta beside rope_parameters, which it mirrors" if mirrored else None)


DIALECT = Dialect(
    name="SpecForge",
    sources=("the package specforge 0.2.0", "github.com/sgl-project/SpecForge at a6b6b023", "released configurations"),
    keeps="dflash_config or dspark_config; block_size at the top level",
    recognised=_recognised,
    architectures={
        Family.DFLASH: ("DFlashDraftModel",),
        Family.DFLASH2: ("DFlash2DraftModel",),
        Family.DSPARK: (_DSPARK,),
    },
    prefixes=("logit_head.",),
    keys=(
        Key("attention_mode", Use.CHECKED, "gqa, or mha where each query head has its own keys", own=True),
        *without_effect("confidence_head_alpha", "training only"),
    ),
    capture="the stream of a serving engine",
    windows=Windows(Bound.ROW),
    kind_key="projector_type",
    block_size="the top level",
    rotary="`rope_parameters`, mirrored in `rope_theta` and `rope_scaling`; plain or YaRN",
    layout=Layout(
        section="dflash_config",
        own=words(
            "mask_token_id target_layer_ids projector_type attention_mode markov_rank markov_head_type "
            "enable_confidence_head confidence_head_with_markov"
        ),
        top=("block_size",),
        rope=Rope.BOTH,
        always={"dtype": "bfloat16"},
        by_family={Family.DSPARK: {"projector_type": "dspark", "attention_mode": "gqa"}},
        families=(Family.DFLASH, Family.DSPARK),
    ),
)
