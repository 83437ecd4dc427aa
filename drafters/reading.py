"""A drafter's ``config.json``, read as it is written: nothing that shapes the graph is guessed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drafters.config import DFlash2, DrafterConfig, DSpark, LayerAttention
from drafters.identify import DFLASH2, DSPARK, identify
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject, disagreement
from onnxkit.layers.rotary_config import read_rotary
from onnxkit.weights.checkpoint import Checkpoint

FULL, SLIDING = "full_attention", "sliding_attention"

# Where trainers put a drafter's own keys, beside the top level.
_NESTED = ("dflash_config", "dspark_config")

# Keys that would change the graph in a way that is not built, with the values that do not.
_NOT_BUILT: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (False,),
    "attention_value_scale": (),
    "draft_vocab_size": (),
    "is_neox_style": (True,),
    "rope_is_neox_style": (True,),
    "use_swa": (False,),
    "sample_from_anchor": (True,),
    "shift_label": (True,),
    "speculators_model_type": (),
    "quantization_config": (),
}

TOP_K = 16  # DSpark's candidates where the user names no number


class Homes:
    """The sections of a drafter's configuration. A key may stand in any of them; where it stands twice, both agree."""

    def __init__(self, config: JsonObject) -> None:
        self.config = config
        self.sections = [*(config.section(key) for key in _NESTED if key in config), config]

    def home(self, key: str) -> JsonObject:
        """The section that holds a key; where none does, the one that the message will name."""
        filled = [section for section in self.sections if key in section]
        for other in filled[1:]:
            if other.data[key] != filled[0].data[key]:
                values = filled[0].data[key], other.data[key]
                raise disagreement(filled[0].place(key), other.place(key), *values)
        return filled[0] if filled else self.sections[0]


def read_drafter(checkpoint: Checkpoint, top_k: int | None = None) -> DrafterConfig:
    """Read a drafter's configuration.

    Args:
        checkpoint: The drafter's folder, opened.
        top_k: Candidates per position of a DSpark drafter, whose configuration does not say; None for 16.

    Raises:
        ExportError: The folder holds something else, a key is missing or has a wrong value, two places disagree, or a
            key asks for something that is not built.
    """
    kind = identify(checkpoint)
    homes = Homes(checkpoint.config)
    _refuse_what_is_not_built(homes, kind)
    config = checkpoint.config
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads, vocab = config.integer("num_key_value_heads"), config.integer("vocab_size")
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim = config.integer("head_dim", default=hidden // heads)  # checked against q_proj's rows
    block_size = homes.home("block_size").integer("block_size", minimum=2)
    variant = _dflash2(homes, hidden) if kind == DFLASH2 else _dspark(homes, checkpoint, hidden)
    if kind == DFLASH2:
        top_k = homes.home("selector_top_k").integer("selector_top_k", maximum=vocab)
    return DrafterConfig(
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps"),
        vocab_size=vocab,
        max_position_embeddings=config.integer("max_position_embeddings", default=None),
        rotary=read_rotary(config, head_dim, partial=False),
        layers=_layers(homes, block_size),
        target_layer_ids=_target_layer_ids(homes),
        block_size=block_size,
        mask_token_id=homes.home("mask_token_id").integer("mask_token_id", minimum=0, maximum=vocab - 1),
        top_k=top_k or TOP_K,
        input_embedding_scale=_factor(homes, "input_embedding_scale"),
        variant=variant,
        notes=tuple(_notes(homes, kind)),
    )


def _refuse_what_is_not_built(homes: Homes, kind: str) -> None:
    homes.config.string("hidden_act", choices=["silu"])
    for key, accepted in _NOT_BUILT.items():
        section = homes.home(key)
        value = section.data.get(key)
        if key == "draft_vocab_size" and value == homes.config.data.get("vocab_size"):
            continue
        if kind == DFLASH2 and key in ("sample_from_anchor", "shift_label"):
            continue  # a DFlash 2 block's anchor row never predicts
        if key in section and value not in accepted:
            raise ExportError(
                "The drafter asks for something that is not built yet.",
                where=section.place(key),
                found=value,
                accepted=" or ".join(map(str, accepted)).lower() or f"no {key}",
                fix="Use a release of the drafter without it.",
            )


def _target_layer_ids(homes: Homes) -> tuple[int, ...]:
    section = homes.home("target_layer_ids")
    ids = section.integers("target_layer_ids")
    if not ids or len(set(ids)) != len(ids) or min(ids) < 0:
        accepted = "at least one layer of the target, each once, from 0 (its output is read; -1, the embedding, is not)"
        raise section.error("target_layer_ids", accepted, "Get config.json again from where the drafter comes from.")
    return tuple(ids)


def _layers(homes: Homes, block_size: int) -> tuple[LayerAttention, ...]:
    """How each layer attends. Where the config says nothing of causality, a sliding layer's block is causal."""
    config = homes.config
    causal = _causal(homes)
    kinds = _layer_types(config)
    if SLIDING not in kinds:
        return tuple(LayerAttention(None, causal or False) for _ in kinds)
    if config.boolean("use_sliding_window", default=True) is False:
        raise disagreement(config.place("layer_types"), config.place("use_sliding_window"), SLIDING, "false")
    window = config.integer("sliding_window")
    if causal is False and window < block_size:
        raise config.error(
            "sliding_window",
            f"at least block_size ({block_size}), since the block is not causal",
            "The attention operator has no right bound; such a drafter cannot be expressed.",
        )
    sliding = LayerAttention(window, True if causal is None else causal)
    return tuple(sliding if kind == SLIDING else LayerAttention(None, causal or False) for kind in kinds)


def _causal(homes: Homes) -> bool | None:
    """What the config says of causality within the block, under either of its names; None where it says nothing."""
    found: list[tuple[str, bool]] = []
    for key in ("is_causal", "causal"):
        section = homes.home(key)
        value = section.boolean(key, default=None)
        if value is not None:
            found.append((section.place(key), value))
    if len(found) == 2 and found[0][1] != found[1][1]:
        raise disagreement(found[0][0], found[1][0], found[0][1], found[1][1])
    return found[0][1] if found else None


def _layer_types(config: JsonObject) -> tuple[str, ...]:
    """Each layer's kind. Without ``layer_types``, Qwen 3 slides from layer ``max_window_layers`` on, where asked to."""
    count = config.integer("num_hidden_layers")
    if "layer_types" in config:
        kinds = config.strings("layer_types")
        if len(kinds) != count or not set(kinds) <= {FULL, SLIDING}:
            raise config.error("layer_types", f"{count} entries (num_hidden_layers), each {FULL} or {SLIDING}")
        return tuple(kinds)
    if not config.boolean("use_sliding_window", default=False):
        return (FULL,) * count
    first = config.integer("max_window_layers", minimum=0)
    return tuple(SLIDING if layer >= first else FULL for layer in range(count))


def _dflash2(homes: Homes, hidden: int) -> DFlash2:
    group = homes.home("conv_group_size")
    if hidden % group.integer("conv_group_size"):
        raise group.error("conv_group_size", f"a divisor of hidden_size ({hidden})")
    return DFlash2(
        conv_kernel_size=homes.home("conv_kernel_size").integer("conv_kernel_size"),
        conv_group_size=group.integer("conv_group_size"),
        selector_rank=homes.home("selector_rank").integer("selector_rank"),
        output_multiplier=_factor(homes, "output_multiplier"),
        final_logit_softcapping=homes.home("final_logit_softcapping").number("final_logit_softcapping", default=None),
    )


def _dspark(homes: Homes, checkpoint: Checkpoint, hidden: int) -> DSpark:
    rank = homes.home("markov_rank").integer("markov_rank")
    section = homes.home("markov_head_type")
    stored = "gated" if any("gate_proj" in name and ".mlp." not in name for name in checkpoint.tensors) else "vanilla"
    if any("joint_proj" in name for name in checkpoint.tensors):
        stored = "rnn"
    declared = section.string("markov_head_type", default=stored)
    if declared != stored or stored == "rnn":
        raise ExportError(
            "The Markov head cannot be exported." if stored == declared else "Config and tensors differ.",
            where=section.place("markov_head_type"),
            found=f"{declared}; by its tensors, {stored}",
            accepted="vanilla or gated, as the tensors are (the state of an rnn head is no score of a pair)",
            fix="Use a drafter with such a head, with its own config.json.",
        )
    return DSpark(rank, stored == "gated", _confidence_width(homes, checkpoint, hidden, rank))


def _confidence_width(homes: Homes, checkpoint: Checkpoint, hidden: int, rank: int) -> int | None:
    """The width of the confidence head's input: the hidden state, perhaps with the previous token's embedding."""
    declared = homes.home("enable_confidence_head").boolean("enable_confidence_head", default=None)
    weight = checkpoint.tensors.get("confidence_head.proj.weight")
    if weight is None:
        if declared:
            raise ExportError(
                "The confidence head that the config declares is not stored.",
                where=checkpoint.folder,
                found="no confidence_head.proj.weight",
                accepted="the tensor, or enable_confidence_head false",
                fix="Complete the download.",
            )
        return None
    names = ("confidence_head.proj.weight", "confidence_head.proj.bias")
    shapes = [list(checkpoint.tensors[name].shape) for name in names if name in checkpoint.tensors]
    accepted = ([[1, hidden], [1]], [[1, hidden + rank], [1]])
    if shapes not in accepted:
        raise ExportError(
            "The confidence head has another shape.",
            where=f"{checkpoint.folder}: confidence_head.proj.weight and .bias",
            found=" and ".join(map(str, shapes)),
            accepted=f"[1, {hidden}] or [1, {hidden + rank}], and [1]",
            fix="Get weights and config.json from one release.",
        )
    checkpoint.claim(names)
    return shapes[0][1]


def _notes(homes: Homes, kind: str) -> Iterator[str]:
    """Keys that are left without effect on purpose."""
    for key in ("output_multiplier", "final_logit_softcapping"):
        if kind == DSPARK and key in homes.home(key):
            yield f"{key} is not applied: a Markov head is trained on the head's own logits"


def _factor(homes: Homes, key: str) -> float | None:
    """A number to multiply with; None where it is 1 or absent."""
    value = homes.home(key).number(key, default=None)
    return None if value == 1.0 else value
