"""Every key of a drafter's ``config.json`` that is known, and what becomes of it.

A key may stand in any of the sections below or at the top level; in two places it must have one value. ``null`` is
absence. Sections that shape the drafter are closed: a key of theirs that stands in no table is refused. At the top
level, in ``text_config`` and in speculators' description of how the drafter is run, such a key is named in a note:
there, finetunes and serving programs leave keys of their own.
"""

from __future__ import annotations

from drafters.checkpoint.kinds import Family
from onnxkit.key_table import Key, Use, without_effect

# Sections of the top level that shape the drafter, in the order in which values are looked for.
OWN_SECTIONS = ("dflash_config", "dspark_config")
BACKBONE_SECTION = "transformer_layer_config"
SHAPING_SECTIONS = (*OWN_SECTIONS, BACKBONE_SECTION)

# Where multimodal configurations keep what others have at the top level; transformers reads it from here.
NESTED_SECTION = "text_config"
SECTIONS = (*SHAPING_SECTIONS, NESTED_SECTION)

# Four names of one thing: whether rows of a block see those before them only. Which one a file has says nothing of who
# wrote it: they are read, and copied, by several.
CAUSAL_KEYS = ("is_causal", "causal", "dflash_query_causal", "causal_head")

_ONLY2, _SPARK = (Family.DFLASH2,), (Family.DSPARK,)


def honoured(name: str, says: str, fields: str, **more: object) -> Key:
    """A key that decides fields of the normalised configuration; their names are separated by spaces."""
    return Key(name, Use.HONOURED, says, tuple(fields.split()), **more)  # type: ignore[arg-type]


_SECTIONS = [
    Key("dflash_config", Use.HONOURED, "a section for the drafter's own keys"),
    Key("dspark_config", Use.HONOURED, "a section for the drafter's own keys"),
    Key(BACKBONE_SECTION, Use.HONOURED, "a section for the layers' keys"),
    Key(NESTED_SECTION, Use.HONOURED, "a section for any key; it must agree with the top level"),
]

_BACKBONE = [
    honoured("hidden_size", "the width of a row; it must be the target's", "hidden_size"),
    honoured("intermediate_size", "the width of the feed-forward parts", "intermediate_size"),
    honoured("num_hidden_layers", "the number of layers", "layers"),
    honoured("num_attention_heads", "the attention's query heads", "num_attention_heads"),
    honoured("num_key_value_heads", "the attention's key and value heads, in the cache, too", "num_key_value_heads"),
    honoured("head_dim", "the width of a head; hidden_size over heads where it is absent", "head_dim rotary"),
    honoured("rms_norm_eps", "the epsilon of every norm", "rms_norm_eps"),
    honoured("vocab_size", "the rows of embedding and head; it must be the target's", "vocab_size"),
    honoured("attention_bias", "biases of the four attention projections", "attention_bias", absent=(False,)),
    honoured("layer_types", "which layers slide", "layers"),
    honoured("sliding_window", "the window of the layers that slide, the row itself included", "layers"),
    honoured(
        "max_window_layers",
        "from which layer on layers slide; without effect beside layer_types",
        "layers",
        absent=(28,),
    ),
    honoured(
        "use_sliding_window", "whether layers slide; it must not contradict layer_types", "layers", absent=(False, True)
    ),
    honoured("rope_parameters", "the rotary tables", "rotary max_position_embeddings"),
    honoured("rope_scaling", "the rotary tables; the older name of rope_parameters", "rotary max_position_embeddings"),
    honoured("rope_theta", "the rotary tables' base", "rotary"),
    honoured(
        "original_max_position_embeddings",
        "the trained context that YaRN stretches",
        "rotary max_position_embeddings",
    ),
    honoured(
        "max_position_embeddings",
        "the limit that a note goes by; YaRN's length must reach it",
        "max_position_embeddings",
    ),
]

_OWN = [
    honoured("block_size", "the rows of a block", "block_size", own=True),
    honoured("mask_token_id", "the token of the rows that are not the anchor", "mask_token_id", own=True),
    honoured("target_layer_ids", "the taps: layers of the target whose output is read", "target_layer_ids", own=True),
    honoured("is_causal", "whether rows of a block see those before them only", "layers", absent=(False, True)),
    honoured("causal", "the same as is_causal", "layers", absent=(False, True), own=True),
    honoured("dflash_query_causal", "the same as is_causal", "layers", absent=(False, True), own=True),
    honoured("causal_head", "the same as is_causal, in JetSpec's releases", "layers", absent=(False, True), own=True),
    honoured(
        "attention_sink_bias", "one more logit of each head's softmax", "attention_sinks", absent=(False,), own=True
    ),
    honoured(
        "input_embedding_scale",
        "what a block's embeddings are multiplied by",
        "input_embedding_scale",
        absent=(1.0,),
        own=True,
    ),
    honoured("draft_vocab_size", "the rows of a head of the drafter's own", "draft_vocab_size", own=True),
    honoured("conv_kernel_size", "kernel size of the convolutions", "variant", own=True, families=_ONLY2),
    honoured("conv_group_size", "channels that share coefficients", "variant", own=True, families=_ONLY2),
    honoured("selector_rank", "the width of the codebooks", "variant", own=True, families=_ONLY2),
    honoured("selector_top_k", "candidates of each position", "top_k", own=True, families=_ONLY2),
    honoured(
        "output_multiplier", "what logits are multiplied by; not those of DSpark", "variant", absent=(1.0,), own=True
    ),
    honoured("final_logit_softcapping", "the cap of logits; not of those of DSpark", "variant", own=True),
    honoured(
        "markov_rank", "the width of the Markov head, 0 for none", "variant", own=True, families=_SPARK, accepted=(0,)
    ),
]

_CHECKED = [
    Key(
        "architectures",
        Use.CHECKED,
        "the kind that the tensors tell, which counts: names are often wrong; some are refused",
    ),
    Key("hidden_act", Use.CHECKED, "silu, the only activation of these drafters"),
    Key("num_target_layers", Use.CHECKED, "the target's layers"),
    Key("target_num_hidden_layers", Use.CHECKED, "the target's layers"),
    Key("target_hidden_size", Use.CHECKED, "the target's hidden_size"),
    Key("selector_vocab_size", Use.CHECKED, "vocab_size: a selector of fewer tokens is not built", own=True),
    Key("projector_type", Use.CHECKED, "the kind that the tensors tell", own=True),
    Key("markov_head_type", Use.CHECKED, "the Markov head's tensors", own=True),
    Key("enable_confidence_head", Use.CHECKED, "the confidence head's tensors", own=True, accepted=(False,)),
    Key("confidence_head_with_markov", Use.CHECKED, "the width of the confidence head's weight", own=True),
    Key("tie_word_embeddings", Use.CHECKED, "the drafter's own tables: false, where it has an embedding and no head"),
    Key("dtype", Use.CHECKED, "the tensors, which count"),
    Key("torch_dtype", Use.CHECKED, "the tensors, which count"),
]

_REFUSED = [
    Key("quantization_config", Use.REFUSED, "the weights are packed"),
    Key("add_swa_attention_sink_bias", Use.REFUSED, "sinks of some layers only", accepted=(False,)),
    Key("attention_value_scale", Use.REFUSED, "scaled values"),
    Key("is_neox_style", Use.REFUSED, "rotation of neighbouring channels", accepted=(True,)),
    Key("rope_is_neox_style", Use.REFUSED, "rotation of neighbouring channels", accepted=(True,)),
    Key("rope_interleaved", Use.REFUSED, "rotation of neighbouring channels", accepted=(False,)),
    Key("linear_attn_config", Use.REFUSED, "layers of linear attention"),
    Key("enable_qwen35_gated_q_proj", Use.REFUSED, "a gate beside the queries", accepted=(False,)),
    Key("lilicorr_candidate_topk", Use.REFUSED, "LiLiCorr, which scores candidates with the target's embedding"),
    Key("pard_token", Use.REFUSED, "P-EAGLE, which is no block drafter of this family"),
    Key("norm_before_fc", Use.REFUSED, "a norm before the taps are fused", accepted=(False,)),
    Key("mlp_bias", Use.REFUSED, "biases of the feed-forward parts", accepted=(False,)),
    Key("use_qk_norm", Use.REFUSED, "queries and keys without norms", accepted=(True,)),
    Key("residual_multiplier", Use.REFUSED, "a factor on every branch", accepted=(1.0,)),
    Key("attention_multiplier", Use.REFUSED, "another scale of the attention's scores"),
    Key("query_pre_attn_scalar", Use.REFUSED, "another scale of the attention's scores"),
    Key("attn_logit_softcapping", Use.REFUSED, "a cap of the attention's scores"),
    Key("num_experts", Use.REFUSED, "a mixture of experts", accepted=(0,)),
    Key("num_local_experts", Use.REFUSED, "a mixture of experts", accepted=(0,)),
    Key("emb_dim", Use.REFUSED, "Domino's head"),
    Key("gru_hidden_dim", Use.REFUSED, "Domino's head"),
    Key("pure_draft_prefix_len", Use.REFUSED, "Domino's head"),
    Key("dspark_noise_token_id", Use.REFUSED, "DeepSeek's drafter"),
    Key("dspark_target_layer_ids", Use.REFUSED, "DeepSeek's drafter"),
    Key("dspark_markov_rank", Use.REFUSED, "DeepSeek's drafter"),
    Key("hc_mult", Use.REFUSED, "DeepSeek's drafter"),
]

_TARGETS = "copied from the target's config; a drafter's layers are plain ones"
_NO_EFFECT = [
    *without_effect("num_anchors max_anchors training_block_size anchor_stride", "training only"),
    *without_effect("attention_dropout initializer_range loss_decay loss_type num_mask_tokens", "training only"),
    *without_effect("partial_rotary_factor mrope_section mrope_interleaved", _TARGETS + ", rotated whole"),
    *without_effect(
        "attn_output_gate full_attention_interval linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads "
        "linear_num_value_heads linear_value_head_dim mamba_ssm_dtype mtp_num_hidden_layers "
        "mtp_use_dedicated_embeddings output_gate_type vision_config image_token_id video_token_id "
        "vision_start_token_id vision_end_token_id moe_intermediate_size shared_expert_intermediate_size "
        "num_experts_per_tok decoder_sparse_step norm_topk_prob router_aux_loss_coef output_router_logits "
        "mlp_only_layers",
        _TARGETS,
    ),
    *without_effect("bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id", "the target's count"),
    *without_effect("model_type auto_map _name_or_path name_or_path transformers_version", "a name or a version"),
    *without_effect(
        "use_cache return_dict output_attentions output_hidden_states torchscript use_bfloat16 chunk_size_feed_forward "
        "is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention tie_encoder_decoder "
        "pruned_heads id2label label2id problem_type finetuning_task task_specific_params tokenizer_class prefix "
        "attn_implementation _attn_implementation _attn_implementation_autoset attn_implementation_internal "
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
        "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
        "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
        "begin_suppress_tokens tf_legacy_loss pretraining_tp",
        "how transformers runs a model",
    ),
]

COMMON = (*_SECTIONS, *_BACKBONE, *_OWN, *_CHECKED, *_REFUSED, *_NO_EFFECT)
