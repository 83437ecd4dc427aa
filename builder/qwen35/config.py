"""The target's configuration, read from ``config.json`` as it is written: nothing that shapes the graph is guessed."""

from __future__ import annotations

from dataclasses import dataclass

from builder.model_config import ModelConfig
from builder.qwen35.keys import check_keys
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject, disagreement
from onnxkit.rotary_config import read_rotary

LINEAR, FULL = "linear_attention", "full_attention"

# Architectures, and whether their text configuration is always nested in one of a multimodal model. Programs that take
# the text model out of one keep its text_config, or write another name.
ARCHITECTURES = {
    "Qwen3_5ForConditionalGeneration": True,
    "Qwen3_5ForCausalLM": False,
    "Qwen3_5TextForCausalLM": False,
}


@dataclass(frozen=True)
class LinearAttentionConfig:
    """The gated delta net's sizes: heads and their widths, and the kernel size of the causal convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def value_width(self) -> int:
        """All value heads side by side."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class TargetConfig(ModelConfig):
    """What shapes the target's graph. Sizes are counts; names follow ``config.json``."""

    intermediate_size: int
    layer_types: tuple[str, ...]
    linear: LinearAttentionConfig
    tie_word_embeddings: bool | None
    mtp_layers: int
    notes: tuple[str, ...] = ()

    @property
    def num_hidden_layers(self) -> int:
        """The number of decoder layers."""
        return len(self.layer_types)


def read_target_config(config: JsonObject) -> TargetConfig:
    """Read a target's ``config.json``.

    Raises:
        ExportError: The architecture is not supported, a key is missing, has a wrong type or value, or asks for
            something that the graph does not do.
    """
    architecture = _architecture(config)
    text = text_section(config, architecture)
    _refuse_packed(config, text)
    notes = check_keys(config, text)
    text.string("hidden_act", choices=["silu"], default="silu")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    if heads % kv_heads:
        raise text.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim = text.integer("head_dim")
    vocab = text.integer("vocab_size")
    bos, pad = (
        _first(text.token_ids(key, vocab) or config.token_ids(key, vocab)) for key in ("bos_token_id", "pad_token_id")
    )
    return TargetConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=text.integer("hidden_size"),
        intermediate_size=text.integer("intermediate_size"),
        layer_types=_layer_types(text),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=text.number("rms_norm_eps"),
        rotary=read_rotary(text, head_dim),
        max_position_embeddings=text.integer("max_position_embeddings"),
        linear=_linear_attention(text),
        tie_word_embeddings=_tied(config, text, ARCHITECTURES[architecture]),
        eos_token_ids=_union(text.token_ids("eos_token_id", vocab), config.token_ids("eos_token_id", vocab)),
        bos_token_id=bos,
        pad_token_id=pad,
        mtp_layers=text.integer("mtp_num_hidden_layers", minimum=0, default=0),
        notes=notes,
    )


def text_section(config: JsonObject, architecture: str) -> JsonObject:
    """The text model's part of ``config.json``: its ``text_config`` where there is one, as transformers takes it.

    Raises:
        ExportError: A multimodal model has none.
    """
    nested = ARCHITECTURES[architecture] or bool(config.data.get("text_config"))
    return config.section("text_config") if nested else config


def _architecture(config: JsonObject) -> str:
    names = config.strings("architectures")
    for name in names:
        if name in ARCHITECTURES:
            return name
    raise ExportError(
        "The checkpoint's architecture is not supported.",
        where=config.place("architectures"),
        found=", ".join(names) or "an empty list",
        accepted=" or ".join(ARCHITECTURES),
        fix="Export a Qwen 3.5 / 3.6 / 3.8 checkpoint with dense feed-forward layers.",
    )


def _refuse_packed(config: JsonObject, text: JsonObject) -> None:
    for section in (config, text):
        if "quantization_config" in section:
            raise ExportError(
                "The checkpoint's weights are already quantized.",
                where=section.place("quantization_config"),
                found=section.section("quantization_config").data.get("quant_method", "a quantization method"),
                accepted="weights in bf16, fp16 or fp32",
                fix="Export the unquantized release.",
            )


def _layer_types(text: JsonObject) -> tuple[str, ...]:
    count = text.integer("num_hidden_layers")
    interval = text.integer("full_attention_interval", default=None)
    if "layer_types" not in text and interval is None:
        raise text.error("layer_types", f"a list of {LINEAR} and {FULL}, one per layer, or full_attention_interval")
    derived = tuple(FULL if interval and (i + 1) % interval == 0 else LINEAR for i in range(count))
    kinds = text.strings("layer_types", default=derived)
    if interval is not None and len(kinds) == count and kinds != derived:
        raise disagreement(text.place("layer_types"), text.place("full_attention_interval"), list(kinds), interval)
    if len(kinds) != count or not set(kinds) <= {LINEAR, FULL}:
        raise text.error("layer_types", f"{count} entries (num_hidden_layers), each {LINEAR} or {FULL}")
    if FULL not in kinds or LINEAR not in kinds:
        raise text.error("layer_types", f"at least one {LINEAR} and one {FULL}")
    return kinds


def _linear_attention(text: JsonObject) -> LinearAttentionConfig:
    key_heads, value_heads = text.integer("linear_num_key_heads"), text.integer("linear_num_value_heads")
    if value_heads % key_heads:
        raise text.error("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    return LinearAttentionConfig(
        key_heads,
        value_heads,
        key_dim=text.integer("linear_key_head_dim"),
        value_dim=text.integer("linear_value_head_dim"),
        kernel=text.integer("linear_conv_kernel_dim", minimum=2),
    )


def _tied(config: JsonObject, text: JsonObject, multimodal: bool) -> bool | None:
    """Whether the head is the embedding's table; None if the config does not say.

    Of a multimodal model the outer key counts, as in transformers: it is the outer model that owns the head. Of a text
    model both places must agree.
    """
    outer, inner = (section.boolean("tie_word_embeddings", default=None) for section in (config, text))
    if not multimodal and None not in (outer, inner) and outer != inner:
        first, second = (section.place("tie_word_embeddings") for section in (config, text))
        raise disagreement(first, second, str(outer).lower(), str(inner).lower())
    return bool(outer) if outer is not None else inner


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None


def _union(*groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(i for group in groups for i in group))
