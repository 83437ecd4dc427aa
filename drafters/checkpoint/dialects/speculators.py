"""vLLM speculators: the layers' keys in ``transformer_layer_config``, or flat; the drafter's own at the top level.

Its configurations are written by transformers' ``to_diff_dict``, which leaves out what has its default. So absence has
a meaning here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafters.checkpoint.dialects.dialect import AnchorRow, Bound, Dialect, Tap, Windows, any_key
from drafters.checkpoint.keys import honoured
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Use, without_effect

# transformers' Qwen3Config. Sizes have defaults there, too; a shape that does not fit them is found with the tensors.
_QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "max_window_layers": 28,
    "rope_theta": 10000.0,
}

_OWN = {"block_size": 8, "draft_vocab_size": 32000}
_BY_FAMILY: Mapping[Family, dict[str, Any]] = {
    Family.DFLASH2: {
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
        "sliding_window_non_causal": True,
        "draft_vocab_size": None,  # there, only the whole vocabulary is allowed
    },
    Family.DSPARK: {
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}


def _defaults(family: Family) -> Mapping[str, Any]:
    defaults = _QWEN3 | _OWN | {"sliding_window_non_causal": False} | _BY_FAMILY.get(family, {})
    return {key: value for key, value in defaults.items() if value is not None}


def _recognised(config: JsonObject) -> str | None:
    return any_key(config, "speculators_model_type", "speculators_config")


def _asked_drafts(config: JsonObject) -> tuple[str, int] | None:
    if "speculators_config" not in config:
        return None
    section = config.section("speculators_config")
    methods = section.data.get("proposal_methods") or []
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise section.error("proposal_methods", "a list of objects {...}")
    for number, method in enumerate(methods):
        entry = JsonObject(method, f"{section.place('proposal_methods')}[{number}]")
        if (drafts := entry.integer("speculative_tokens", default=None)) is not None:
            return entry.place("speculative_tokens"), int(drafts)
    return None


_KEYS = (
    honoured(
        "aux_hidden_state_layer_ids", "the taps: layers of the target whose input is read", "target_layer_ids", own=True
    ),
    honoured(
        "sliding_window_non_causal", "the opposite of is_causal, for layers that slide", "layers", absent=(False,)
    ),
    honoured("sample_from_anchor", "whether the anchor's row predicts", "variant", absent=(True, False), own=True),
    Key("speculators_model_type", Use.CHECKED, "the kind that the tensors tell"),
    Key("speculators_config", Use.CHECKED, "speculative_tokens: the drafts of a block"),
    *without_effect("speculators_version has_no_defaults_at_init", "a version"),
    *without_effect("norm_before_residual", "of EAGLE3 only"),
)

DIALECT = Dialect(
    name="vLLM speculators",
    sources=("the package speculators 0.9.0", "released configurations"),
    keeps="the top level; the layers' keys in transformer_layer_config, or at the top level, too",
    recognised=_recognised,
    architectures={
        Family.DFLASH: ("DFlashDraftModel", "DFlashSpeculator"),
        Family.DFLASH2: ("DFlash2DraftModel",),
        Family.DSPARK: ("DSparkDraftModel", "DSparkSpeculator"),
    },
    keys=_KEYS,
    defaults=_defaults,
    taps={"aux_hidden_state_layer_ids": Tap.INPUT},
    capture="the stream of a serving engine",
    # Its class and the programs that serve it have opposite defaults for DSpark: the key's absence tells nothing.
    anchor=AnchorRow("sample_from_anchor", absent={Family.DFLASH: False, Family.DFLASH2: False, Family.DSPARK: None}),
    asked_drafts=_asked_drafts,
    windows=Windows(Bound.BLOCK, causal="those that slide, unless `sliding_window_non_causal` is true"),
    kind_key="speculators_model_type",
    block_size="the top level; 8 where it is left out",
    rotary="`rope_parameters` of `transformer_layer_config`, perhaps by kind of layer; plain or YaRN",
    vocabulary="a part of the target's where `draft_vocab_size` is smaller, with a head of its own; `d2t` leads to ids",
)
