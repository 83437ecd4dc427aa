"""A drafter's ``config.json`` and the names of its tensors, read as they are written: nothing that shapes the graph is
guessed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drafters.checkpoint import conventions
from drafters.checkpoint.config import DFlash, DFlash2, DrafterConfig, DSpark
from drafters.checkpoint.dialects import CONFIDENCE_KEYS, KEYS, KIND_KEYS
from drafters.checkpoint.identity import Identity, identity
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.markov import CONFIDENCE_HEAD, markov_head
from drafters.checkpoint.mask_row import MASK_FILE, read_mask_row
from drafters.checkpoint.names import EMBEDDING, HEAD, DraftNames
from drafters.checkpoint.notes import notes_of
from drafters.checkpoint.sections import ConfigSections
from drafters.checkpoint.vocabulary import draft_vocabulary, holds_no_row_per_token, not_stored
from onnxkit.errors import ExportError
from onnxkit.json_object import disagreement
from onnxkit.key_table import one_of, refusal, refuse_values, short
from onnxkit.rotary import Rotary
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.safetensors_file import read_floats

TOP_K = 16  # candidates where neither the configuration nor the user names a number

# How far stored frequencies may be from computed ones, by their type.
_TOLERANCES = {"F32": 1e-4, "F64": 1e-4, "BF16": 1e-2, "F16": 1e-2}


def read_drafter(checkpoint: Checkpoint, top_k: int | None = None, block_size: int | None = None) -> DrafterConfig:
    """Read a drafter's configuration.

    Args:
        checkpoint: The drafter's folder, opened.
        top_k: Candidates per position of a drafter whose configuration does not say; None for 16.
        block_size: Rows of a block of a drafter whose configuration does not say.

    Raises:
        ExportError: The folder holds something else, a key is missing or has a wrong value, two places disagree, or a
            key asks for something that is not built.
    """
    return read_identified(checkpoint, identity(checkpoint), top_k, block_size)


def read_identified(
    checkpoint: Checkpoint,
    found: Identity,
    top_k: int | None = None,
    block_size: int | None = None,
    *,
    rope_theta: float | None = None,
    target_vocab: int | None = None,
) -> DrafterConfig:
    """The same for a drafter whose kind and producer are already known.

    Args:
        checkpoint: The drafter's folder, opened.
        found: Its kind and producer.
        top_k: Candidates per position of a drafter whose configuration does not say; None for 16.
        block_size: Rows of a block of a drafter whose configuration does not say.
        rope_theta: A rotary base to try in place of the one that is written.
        target_vocab: The rows of the target's tables, where they are known.
    """
    sections = found.sections
    _check_keys(checkpoint, found)
    hidden, vocab = sections.integer("hidden_size"), sections.integer("vocab_size")
    heads, kv_heads, head_dim = _attention_sizes(sections, hidden)
    block = conventions.block_size(sections, block_size)
    conventions.check_drafts(sections, block)
    if found.family == Family.DFLASH2:
        top_k = _selector_top_k(sections, vocab, top_k)
    draft_vocab = draft_vocabulary(checkpoint, found, vocab)
    if holds_no_row_per_token(found) and target_vocab is not None:
        vocab, draft_vocab = target_vocab, None
    rotary = conventions.rotary(sections, head_dim, conventions.layer_kinds(sections), rope_theta)
    _check_frequencies(checkpoint, found.names, rotary)
    mask_token = conventions.mask_token(sections, vocab)
    return DrafterConfig(
        hidden_size=hidden,
        intermediate_size=sections.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=sections.number("rms_norm_eps"),
        vocab_size=vocab,
        max_position_embeddings=_trained_positions(sections, rotary),
        rotary=rotary,
        layers=conventions.layers(sections, block),
        target_layer_ids=conventions.target_layers(sections),
        block_size=block,
        mask_token_id=mask_token,
        top_k=top_k or TOP_K,
        input_embedding_scale=sections.factor("input_embedding_scale"),
        variant=_variant(checkpoint, found, hidden, block),
        attention_bias=sections.boolean("attention_bias", default=False),
        attention_sinks=sections.boolean("attention_sink_bias", default=False),
        own_embedding=EMBEDDING in found.names,
        own_head=HEAD in found.names,
        draft_vocab_size=draft_vocab,
        mask_row=read_mask_row(checkpoint.file(MASK_FILE), hidden, mask_token),
        notes=(str(found), *notes_of(checkpoint, found, rotary, rope_theta), *sections.notes),
    )


def _attention_sizes(sections: ConfigSections, hidden: int) -> tuple[int, int, int]:
    """Query heads, key and value heads, and the width of a head."""
    heads, kv_heads = sections.integer("num_attention_heads"), sections.integer("num_key_value_heads")
    if heads % kv_heads:
        raise sections.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if sections.string("attention_mode", choices=["gqa", "mha"], default="gqa") == "mha" and heads != kv_heads:
        raise sections.error("attention_mode", f"gqa: there are {kv_heads} key heads for {heads} query heads")
    head_dim = sections.integer("head_dim", default=hidden // heads)  # checked against q_proj's rows
    if head_dim % 2:
        raise sections.error("head_dim", "an even number: one half of a head is rotated against the other")
    return heads, kv_heads, head_dim


def _selector_top_k(sections: ConfigSections, vocab: int, option: int | None) -> int:
    declared = sections.integer("selector_top_k")
    if declared > vocab:
        raise sections.error("selector_top_k", f"a whole number from 1 up to {vocab} (vocab_size)")
    if option not in (None, declared):
        raise sections.error("selector_top_k", f"{option}, as dflash2_top_k asks for", "Leave dflash2_top_k out.")
    if sections.integer("selector_vocab_size", default=vocab) != vocab:
        fix = "Such a drafter proposes no token beyond that number; it cannot be expressed."
        raise sections.error("selector_vocab_size", f"{vocab} (vocab_size)", fix)
    return int(declared)


def _trained_positions(sections: ConfigSections, rotary: Rotary) -> int | None:
    """How many positions it was made for. YaRN's length counts where the target's was copied beside it."""
    declared = sections.integer("max_position_embeddings", default=None)
    return min(declared, rotary.yarn.length) if declared and rotary.yarn else declared


def _check_frequencies(checkpoint: Checkpoint, names: DraftNames, rotary: Rotary) -> None:
    """Stored rotary frequencies, which the graph computes, must be those that the config describes."""
    plain, stretched = replace(rotary, yarn=None).frequencies(), rotary.frequencies()
    for name in names.left_out:
        stored = checkpoint.tensors[name]
        if not name.endswith("inv_freq") or stored.dtype not in _TOLERANCES or not stored.here:
            continue
        values, tolerance = read_floats(stored), _TOLERANCES[stored.dtype]
        wanted = [plain] if name.endswith("original_inv_freq") else [stretched, plain]
        if not any(values.shape == w.shape and np.allclose(values, w, tolerance, tolerance * w[-1]) for w in wanted):
            base = float(values[1]) ** -len(values) if len(values) > 1 and values[1] > 0 else None
            raise ExportError(
                "The stored rotary frequencies do not match the config.",
                where=f"{checkpoint.folder}: {name}",
                found=f"{len(values)} frequencies" + (f", of a base of about {base:.4g}" if base else ""),
                accepted=f"{len(plain)} frequencies of the base {rotary.theta:g}",
                fix="The stored ones were trained with: give --extra_options drafter_rope_theta=BASE, or correct "
                "rope_theta.",
            )


def _check_keys(checkpoint: Checkpoint, found: Identity) -> None:
    """Keys that ask for something unsupported, keys of another kind, and keys that must agree with the tensors."""
    sections, names, family = found.sections, found.names, found.family
    refuse_values(sections, KEYS)
    _refuse_other_families(sections, family)
    sections.string("hidden_act", choices=["silu"], default="silu")
    for key in KIND_KEYS:
        declared = sections.string(key, default=family)
        if declared != family:
            raise disagreement(sections.place(key), f"the tensors of {checkpoint.folder}", declared, family)
    if sections.boolean("has_embed_tokens", default=False) and EMBEDDING not in names:
        raise not_stored(checkpoint, found, "has_embed_tokens", EMBEDDING)
    tied = sections.boolean("tie_word_embeddings", default=False)
    if tied and EMBEDDING in names and HEAD not in names:
        raise sections.error("tie_word_embeddings", "false: the drafter has an embedding of its own, and no head")
    for key in ("dtype", "torch_dtype"):
        sections.string(key, default=None)
    for key in CONFIDENCE_KEYS:
        if family != Family.DSPARK and sections.boolean(key, default=False):
            raise not_stored(checkpoint, found, key, CONFIDENCE_HEAD[0])


def _refuse_other_families(sections: ConfigSections, family: Family) -> None:
    """Refuse keys of another kind: the tensors that they describe are not there."""
    for name, key in KEYS.items():
        if not key.families or family in key.families or name not in sections:
            continue
        if not one_of(value := sections.data[name], key.accepted):
            error = refusal(sections, key)
            error.details["found"] = f"{short(value)} in a {family.label} drafter, which it is by its tensors"
            raise error


def _variant(checkpoint: Checkpoint, found: Identity, hidden: int, block: int) -> DFlash | DFlash2 | DSpark:
    sections = found.sections
    predicts = conventions.anchor_predicts(sections, found.dialect, found.family, block)
    if found.family == Family.DSPARK:
        return markov_head(checkpoint, sections, found.names, hidden, predicts)
    factor = sections.factor("output_multiplier")
    cap = sections.number("final_logit_softcapping", default=None)
    if found.family != Family.DFLASH2:
        return DFlash(factor, cap, predicts)
    group = sections.integer("conv_group_size")
    if hidden % group:
        raise sections.error("conv_group_size", f"a divisor of hidden_size ({hidden})")
    rank = sections.integer("selector_rank")
    return DFlash2(sections.integer("conv_kernel_size"), group, rank, factor, cap, predicts)
