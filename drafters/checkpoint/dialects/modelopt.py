"""NVIDIA ModelOpt: ``DFlashDraftModel`` for DSpark as well, and a Markov head's tensors without a prefix.

Its exporter writes ``config.json`` key by key, always the same ones. So a plain drafter of its own has keys that
transformers no longer writes (``rope_scaling``, ``torch_dtype``), and none that only transformers writes.
"""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import AnchorRow, Bound, Dialect, Layout, Rope, Tap, Windows, any_key, words
from drafters.checkpoint.keys import honoured
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Use, without_effect

_WRITTEN = {"dflash_config", "rope_theta", "rope_scaling", "torch_dtype", "num_target_layers", "initializer_range"}
_BY_TRANSFORMERS = {"transformers_version", "auto_map", "use_cache", "bos_token_id", "eos_token_id", "_name_or_path"}


def _recognised(config: JsonObject) -> str | None:
    found = any_key(config, "use_confidence_head", "use_swa", "swa_window_size", "shift_label", "has_embed_tokens")
    own_writer = config.data.keys() >= _WRITTEN and not _BY_TRANSFORMERS & config.data.keys()
    return found or ("the keys that its exporter writes, and none of transformers'" if own_writer else None)


_DOUBT = (
    "NVIDIA ModelOpt 0.45 to 0.47 with transformers 5 trains with one rotary base and writes another: 10000 for the "
    "target's, or the target's for 10000, and no key tells. If few drafts are accepted, compare an export with "
    "drafter_rope_theta, 10000 or the target's, whichever this is not"
)

_KEYS = (
    honoured(
        "eagle_aux_hidden_state_layer_ids",
        "the taps: layers of the target whose input is read",
        "target_layer_ids",
        own=True,
    ),
    honoured("shift_label", "whether the anchor's row predicts; of DSpark only", "variant", absent=(True,), own=True),
    honoured("use_swa", "whether every layer slides, whatever layer_types says", "layers", absent=(False,), own=True),
    honoured("swa_window_size", "the window of use_swa", "layers", own=True),
    Key("use_confidence_head", Use.CHECKED, "the confidence head's tensors", own=True, accepted=(False,)),
    Key("has_embed_tokens", Use.CHECKED, "the embedding's tensor", own=True),
    *without_effect("dflash_export_rope_scaling producer", "how it was exported"),
)

DIALECT = Dialect(
    name="NVIDIA ModelOpt",
    title="NVIDIA Model Optimizer (ModelOpt)",
    sources=("the package nvidia-modelopt 0.47.0 and 0.48.0rc1", "released configurations"),
    keeps="dflash_config; block_size at the top level, too",
    recognised=_recognised,
    architectures={
        Family.DFLASH: ("DFlashDraftModel",),
        Family.DFLASH2: ("DFlash2DraftModel",),
        Family.DSPARK: ("DFlashDraftModel",),
    },
    aliases={
        "markov_w1.": "markov_head.markov_w1.",
        "markov_w2.": "markov_head.markov_w2.",
        "gate_proj.": "markov_head.gate_proj.",
        "joint_proj.": "markov_head.joint_proj.",
        "confidence_proj.": "confidence_head.proj.",
    },
    marks=("markov_w1.weight", "markov_w2.weight", "confidence_proj.weight"),
    keys=_KEYS,
    taps={"target_layer_ids": Tap.OUTPUT, "eagle_aux_hidden_state_layer_ids": Tap.INPUT},
    capture="transformers' `hidden_states`, the last of which is the final norm's output",
    normed_last_tap=True,
    anchor=AnchorRow("shift_label", families=(Family.DSPARK,)),
    windows=Windows(
        Bound.CONTEXT,
        slides="all where `use_swa` is true",
        causal="all or none as `causal` says, else none",
        switch="use_swa",
        size="swa_window_size",
    ),
    kind_key="projector_type",
    confidence_key="use_confidence_head",
    block_size="the top level; of DFlash 2 in `dflash_config`, too",
    rotary="`rope_theta` and `rope_scaling`; plain or YaRN, whose length need not reach max_position_embeddings",
    theta_in_doubt={Family.DFLASH: _DOUBT, Family.DSPARK: _DOUBT},  # releases with DFlash 2 write what they train with
    layout=Layout(
        section="dflash_config",
        own=words(
            "mask_token_id target_layer_ids use_swa swa_window_size causal attention_sink_bias projector_type "
            "shift_label markov_rank markov_head_type use_confidence_head conv_kernel_size conv_group_size "
            "selector_rank selector_top_k"
        ),
        top=("block_size", "attention_sink_bias"),
        rope=Rope.FLAT,
        always={"torch_dtype": "bfloat16", "initializer_range": 0.02, "attention_dropout": 0.0},
        by_family={
            Family.DFLASH2: {"projector_type": "dflash2"},
            Family.DSPARK: {"projector_type": "dspark"},
        },
    ),
)
