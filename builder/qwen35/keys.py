"""Every key of a target's ``config.json`` that is known, and what becomes of it.

A key that stands in no table is refused where it looks as if it shaped the graph, and named in a note otherwise, at the
top level as in ``text_config``: finetunes and serving programs leave keys of their own in both. A checkpoint with a
``text_config`` may repeat its keys at the top level; both must agree, since programs read the one or the other.
"""

from __future__ import annotations

from onnxkit.json_object import JsonObject, disagreement
from onnxkit.key_table import (
    Key,
    Use,
    one_of,
    refuse_values,
    same,
    settle_unknown,
    short,
    table,
    without_effect,
)


def _honoured(fields: str, **keys: str) -> list[Key]:
    return [Key(name, Use.HONOURED, says, tuple(fields.split())) for name, says in keys.items()]


_TEXT = [
    *_honoured("vocab_size", vocab_size="rows of embedding and head"),
    *_honoured("hidden_size", hidden_size="the width of a row"),
    *_honoured("intermediate_size", intermediate_size="the width of the feed-forward parts"),
    *_honoured(
        "layer_types",
        num_hidden_layers="the number of layers",
        layer_types="which layers attend and which carry a state",
        full_attention_interval="every n-th layer is full attention; it must not contradict layer_types",
    ),
    *_honoured("num_attention_heads", num_attention_heads="query heads"),
    *_honoured("num_key_value_heads", num_key_value_heads="key and value heads, in the cache, too"),
    *_honoured("head_dim", head_dim="the width of a head"),
    *_honoured("rms_norm_eps", rms_norm_eps="the epsilon of every norm"),
    *_honoured(
        "rotary",
        rope_parameters="the rotary tables",
        rope_scaling="the rotary tables; the older home",
        rope_theta="the rotary tables' base",
        partial_rotary_factor="the share of a head that is rotated",
        original_max_position_embeddings="the trained context that YaRN stretches",
    ),
    *_honoured("max_position_embeddings", max_position_embeddings="the longest context"),
    *_honoured(
        "linear",
        linear_num_key_heads="the linear layers' key heads",
        linear_num_value_heads="the linear layers' value heads",
        linear_key_head_dim="the width of those key heads",
        linear_value_head_dim="the width of those value heads",
        linear_conv_kernel_dim="kernel size of the linear layers' convolution",
    ),
    *_honoured("mtp_layers", mtp_num_hidden_layers="a note where such layers are declared and not stored"),
    *_honoured("rotary", mrope_section="of images only; it must fit the rotated part"),
    Key("hidden_act", Use.CHECKED, "silu, the only activation that is built", absent=("silu",)),
    Key("attention_bias", Use.REFUSED, "biases of the attention projections", accepted=(False,)),
    Key("attn_output_gate", Use.REFUSED, "attention without an output gate", accepted=(True,)),
    Key("output_gate_type", Use.REFUSED, "another gate of the linear layers", accepted=("swish", "silu")),
    Key("quantization_config", Use.REFUSED, "the weights are packed"),
    Key("num_experts", Use.REFUSED, "a mixture of experts", accepted=(0,)),
    Key("num_local_experts", Use.REFUSED, "a mixture of experts", accepted=(0,)),
    Key("mlp_only_layers", Use.REFUSED, "a mixture of experts", accepted=([],)),
    Key("mlp_bias", Use.REFUSED, "biases of the feed-forward parts", accepted=(False,)),
    Key("use_sliding_window", Use.REFUSED, "layers that see a part of the text", accepted=(False,)),
    Key("sliding_window", Use.REFUSED, "layers that see a part of the text"),
    Key("attn_logit_softcapping", Use.REFUSED, "a cap of the attention's scores"),
    Key("final_logit_softcapping", Use.REFUSED, "a cap of the logits"),
    Key("query_pre_attn_scalar", Use.REFUSED, "another scale of the attention's scores"),
    Key("embedding_multiplier", Use.REFUSED, "scaled embeddings", accepted=(1.0,)),
    Key("residual_multiplier", Use.REFUSED, "a factor on every branch", accepted=(1.0,)),
    Key("logits_scaling", Use.REFUSED, "scaled logits", accepted=(1.0,)),
    Key("use_qk_norm", Use.REFUSED, "queries and keys without norms", accepted=(True,)),
    Key("is_causal", Use.REFUSED, "attention to what comes later", accepted=(True,)),
]

# Keys that belong to the outer model as well as to the text model.
_BOTH = [
    Key("tie_word_embeddings", Use.HONOURED, "whether the head is the embedding's table", ("tie_word_embeddings",)),
    Key("eos_token_id", Use.HONOURED, "ids that end a text, in genai_config.json", ("eos_token_ids",)),
    Key("bos_token_id", Use.HONOURED, "in genai_config.json", ("bos_token_id",)),
    Key("pad_token_id", Use.HONOURED, "in genai_config.json", ("pad_token_id",)),
    Key("architectures", Use.CHECKED, "the architectures that are built"),
    Key("dtype", Use.CHECKED, "the tensors, which count"),
    Key("torch_dtype", Use.CHECKED, "the tensors, which count"),
    Key("text_config", Use.HONOURED, "the home of the text model's keys"),
    *without_effect("vision_config language_model_only audio_config", "of parts that are not exported"),
    *without_effect(
        "image_token_id video_token_id audio_token_id vision_start_token_id vision_end_token_id vision_token_id",
        "of images",
    ),
    *without_effect("mrope_interleaved", "of images: for text all three rows are the same"),
    *without_effect("mtp_use_dedicated_embeddings mtp_loss_weight", "of the prediction head, which is not exported"),
    *without_effect("mamba_ssm_dtype", "how other programs keep states; here they are float32"),
    *without_effect("attention_dropout initializer_range router_aux_loss_coef output_router_logits", "training only"),
    *without_effect(
        "moe_intermediate_size shared_expert_intermediate_size num_experts_per_tok decoder_sparse_step norm_topk_prob",
        "of a mixture of experts, which num_experts tells",
    ),
    *without_effect("max_window_layers", "of sliding layers, which use_sliding_window tells"),
    *without_effect("model_type auto_map _name_or_path name_or_path transformers_version", "a name or a version"),
    *without_effect("unsloth_fixed unsloth_version model_name", "a name or a version"),
    *without_effect(
        "use_cache return_dict output_attentions output_hidden_states torchscript use_bfloat16 pretraining_tp "
        "chunk_size_feed_forward is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention "
        "tie_encoder_decoder pruned_heads id2label label2id problem_type finetuning_task task_specific_params "
        "tokenizer_class prefix attn_implementation _attn_implementation _attn_implementation_autoset "
        "attn_implementation_internal max_length min_length do_sample early_stopping num_beams num_beam_groups "
        "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
        "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate "
        "forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty "
        "suppress_tokens begin_suppress_tokens tf_legacy_loss sep_token_id decoder_start_token_id",
        "how transformers runs a model",
    ),
]

KEYS = table(_TEXT, _BOTH)
_TEXT_ONLY = {key.name for key in _TEXT}


def check_keys(config: JsonObject, text: JsonObject) -> tuple[str, ...]:
    """Check that every key is known and asks for nothing unsupported. Gives a note for each unknown one.

    Args:
        config: ``config.json``.
        text: The text model's part of it; the same object where there is no other.

    Raises:
        ExportError: A key looks as if it shaped the graph and is not known, asks for what is not built, or stands at
            the top level with another value than in ``text_config``.
    """
    for section in (config, text):
        refuse_values(section, KEYS)
    if text is config:
        return tuple(settle_unknown(config, KEYS))
    notes = settle_unknown(text, [name for name in KEYS if name != "text_config"])
    for key in _TEXT_ONLY:
        if key not in config or KEYS[key].use is Use.REFUSED:
            continue
        nested = text.data.get(key)
        if not same(config.data[key], nested) and not (nested is None and one_of(config.data[key], KEYS[key].absent)):
            values = [short(value) if value is not None else None for value in (config.data[key], nested)]
            raise disagreement(config.place(key), text.place(key), *values)
    return (*settle_unknown(config, KEYS), *notes)
