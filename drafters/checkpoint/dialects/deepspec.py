"""DeepSpec: a deep copy of the target's configuration with a drafter's keys beside it. Its plain drafters are DSpark
ones without a Markov head: their anchor's row also predicts."""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Bound, Dialect, Layout, Rope, Windows, architecture, words
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject

_ARCHITECTURE = "Qwen3DSparkModel"


def _recognised(config: JsonObject) -> str | None:
    if architecture(config) == _ARCHITECTURE and "target_layer_ids" in config:
        return f"the architecture {_ARCHITECTURE} with flat keys"
    return "num_anchors beside flat keys" if "num_anchors" in config and "target_layer_ids" in config else None


DIALECT = Dialect(
    name="DeepSpec",
    title="DeepSpec (deepseek-ai)",
    sources=("github.com/deepseek-ai/DeepSpec at afdfa7c", "released configurations"),
    keeps="the top level, beside a copy of the target's keys",
    recognised=_recognised,
    architectures={Family.DSPARK: (_ARCHITECTURE,)},
    bare=Family.DSPARK,
    capture="transformers' `hidden_states`, the last of which is the final norm's output",
    normed_last_tap=True,
    windows=Windows(Bound.NONE, slides="none", causal="none"),
    rotary="`rope_parameters`; plain or YaRN",
    layout=Layout(
        section=None,
        own=words(
            "block_size mask_token_id target_layer_ids markov_rank markov_head_type enable_confidence_head "
            "confidence_head_with_markov"
        ),
        rope=Rope.PARAMETERS,
        always={"dtype": "bfloat16"},
    ),
)
