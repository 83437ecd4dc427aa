"""NVIDIA ModelOpt: ``DFlashDraftModel`` whatever the kind, a Markov head without a name of its own, and ``use_swa``.

Its exporter writes ``config.json`` key by key, always the same ones. So a plain drafter of its own has keys that
transformers no longer writes (``rope_scaling``, ``torch_dtype``), and none that only transformers writes.
"""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Dialect, any_key
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import without_effect

_WRITTEN = {"dflash_config", "rope_theta", "rope_scaling", "torch_dtype", "num_target_layers", "initializer_range"}
_BY_TRANSFORMERS = {"transformers_version", "auto_map", "use_cache", "bos_token_id", "eos_token_id", "_name_or_path"}


def _claims(config: JsonObject) -> str | None:
    found = any_key(config, "use_confidence_head", "use_swa", "swa_window_size", "shift_label", "has_embed_tokens")
    own_writer = config.data.keys() >= _WRITTEN and not _BY_TRANSFORMERS & config.data.keys()
    return found or ("the keys that its exporter writes, and none of transformers'" if own_writer else None)


_DOUBT = (
    "NVIDIA ModelOpt 0.45 to 0.47 with transformers 5 trains with one rotary base and writes another: 10000 for the "
    "target's, or the target's for 10000, and no key tells. If few drafts are accepted, compare an export with "
    "drafter_rope_theta, 10000 or the target's, whichever this is not"
)


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
    theta_in_doubt={Family.DFLASH: _DOUBT, Family.DSPARK: _DOUBT},  # releases with DFlash 2 write what they train with
    normed_last_tap=True,
    keys=tuple(without_effect("dflash_export_rope_scaling producer", "how it was exported")),
)
