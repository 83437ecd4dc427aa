"""vLLM speculators: the layers' keys in ``transformer_layer_config``, or flat; the drafter's own at the top level.

Its configurations are written by transformers' ``to_diff_dict``, which leaves out what has its default. So absence has
a meaning here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafters.checkpoint.dialects.dialect import Dialect, any_key
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import without_effect

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
_BY_KIND: Mapping[Family, dict[str, Any]] = {
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
    defaults = _QWEN3 | _OWN | {"sliding_window_non_causal": False} | _BY_KIND.get(family, {})
    return {key: value for key, value in defaults.items() if value is not None}


def _claims(config: JsonObject) -> str | None:
    return any_key(config, "speculators_model_type", "speculators_config")


DIALECT = Dialect(
    name="vLLM speculators",
    homes="layers in transformer_layer_config or flat; its own keys at the top level",
    claims=_claims,
    defaults=_defaults,
    one_bound=True,
    keys=(
        *without_effect("speculators_version has_no_defaults_at_init", "a version"),
        *without_effect("norm_before_residual", "of EAGLE3 only"),
    ),
)
