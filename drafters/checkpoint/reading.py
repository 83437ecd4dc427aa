"""A drafter's ``config.json`` and the names of its tensors, read as they are written: nothing that shapes the graph is
guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from drafters.checkpoint import conventions
from drafters.checkpoint.config import DFlash, DFlash2, DrafterConfig, DSpark
from drafters.checkpoint.dialects import KEYS, recognise
from drafters.checkpoint.dialects.dialect import Dialect
from drafters.checkpoint.heads import markov_head
from drafters.checkpoint.homes import Homes
from drafters.checkpoint.identify import TITLES, kind_and_reason
from drafters.checkpoint.keys import DFLASH, DFLASH2, DSPARK
from drafters.checkpoint.mask_row import MASK_FILE, read_mask_row
from drafters.checkpoint.names import DraftNames, draft_names, tensor
from onnxkit.errors import ExportError
from onnxkit.json_object import disagreement
from onnxkit.key_table import one_of, refusal, refuse_values, short
from onnxkit.layers.rotary import Rotary
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.safetensors_file import read_floats, read_integers

TOP_K = 16  # candidates where neither the configuration nor the user names a number

# How far stored frequencies may be from computed ones, by their type.
_TOLERANCES = {"F32": 1e-4, "F64": 1e-4, "BF16": 1e-2, "F16": 1e-2}

EMBEDDING, HEAD, MAP, MASK = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"


@dataclass(frozen=True)
class Identity:
    """What a drafter's folder holds, and why one thinks so.

    Attributes:
        family: ``dflash``, ``dflash2`` or ``dspark``.
        family_reason: What the kind was told by.
        dialect: The producer.
        dialect_reason: What the producer was told by.
        names: The names of the tensors.
        homes: The keys of the configuration.
    """

    family: str
    family_reason: str
    dialect: Dialect
    dialect_reason: str
    names: DraftNames
    homes: Homes

    def __str__(self) -> str:
        title = TITLES[self.family]
        return f"{title} by {self.family_reason}; from {self.dialect.name} by {self.dialect_reason}"


def identity(checkpoint: Checkpoint) -> Identity:
    """Tell the kind and the producer, from the tensors first, and find the keys.

    Raises:
        ExportError: It is a kind that is not taken, a key is not known, or two places disagree.
    """
    names = draft_names(checkpoint)
    family, why = kind_and_reason(checkpoint, names)
    dialect, reason = recognise(checkpoint.config, list(checkpoint.tensors))
    homes = Homes(checkpoint.config, KEYS, dialect.renames, dialect.defaults(family), dialect.name)
    return Identity(family, why, dialect, reason, names, homes)


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
    """The same of a drafter whose kind and producer are known already.

    Args:
        checkpoint: The drafter's folder, opened.
        found: Its kind and producer.
        top_k: Candidates per position of a drafter whose configuration does not say; None for 16.
        block_size: Rows of a block of a drafter whose configuration does not say.
        rope_theta: A rotary base to try in place of the one that is written.
        target_vocab: The rows of the target's tables, where they are known.
    """
    homes, names, family = found.homes, found.names, found.family
    refuse_values(homes, KEYS)
    _refuse_other_families(homes, family)
    _check(checkpoint, found)
    hidden, heads = homes.integer("hidden_size"), homes.integer("num_attention_heads")
    kv_heads, vocab = homes.integer("num_key_value_heads"), homes.integer("vocab_size")
    if heads % kv_heads:
        raise homes.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if homes.string("attention_mode", choices=["gqa", "mha"], default="gqa") == "mha" and heads != kv_heads:
        raise homes.error("attention_mode", f"gqa: there are {kv_heads} key heads for {heads} query heads")
    head_dim = homes.integer("head_dim", default=hidden // heads)  # checked against q_proj's rows
    if head_dim % 2:
        raise homes.error("head_dim", "an even number: one half of a head is rotated against the other")
    block = conventions.block_size(homes, block_size)
    conventions.check_drafts(homes, block)
    if family == DFLASH2:
        top_k = _selector_top_k(homes, vocab, top_k)
    draft_vocab = _draft_vocabulary(checkpoint, found, vocab)
    if _holds_no_row_per_token(found) and target_vocab is not None:
        vocab, draft_vocab = target_vocab, None
    checkpoint.claim(names.left_out)
    rotary = conventions.rotary(homes, head_dim, conventions.layer_kinds(homes), rope_theta)
    _check_frequencies(checkpoint, names, rotary)
    mask_token = conventions.mask_token(homes, vocab)
    return DrafterConfig(
        hidden_size=hidden,
        intermediate_size=homes.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=homes.number("rms_norm_eps"),
        vocab_size=vocab,
        max_position_embeddings=_trained_positions(homes, rotary),
        rotary=rotary,
        layers=conventions.layers(homes, block),
        target_layer_ids=conventions.target_layers(homes),
        block_size=block,
        mask_token_id=mask_token,
        top_k=top_k or TOP_K,
        input_embedding_scale=homes.factor("input_embedding_scale"),
        variant=_variant(checkpoint, found, hidden, block),
        attention_bias=homes.boolean("attention_bias", default=False),
        attention_sinks=homes.boolean("attention_sink_bias", default=False),
        own_embedding=EMBEDDING in names,
        own_head=HEAD in names,
        draft_vocab_size=draft_vocab,
        mask_row=read_mask_row(checkpoint.file(MASK_FILE), hidden, mask_token),
        notes=(str(found), *_notes(checkpoint, found, rotary, rope_theta), *homes.notes),
    )


def _selector_top_k(homes: Homes, vocab: int, option: int | None) -> int:
    declared = homes.integer("selector_top_k")
    if declared > vocab:
        raise homes.error("selector_top_k", f"a whole number from 1 up to {vocab} (vocab_size)")
    if option not in (None, declared):
        raise homes.error("selector_top_k", f"{option}, as dflash2_top_k asks for", "Leave dflash2_top_k out.")
    if homes.integer("selector_vocab_size", default=vocab) != vocab:
        fix = "Such a drafter proposes no token beyond that number; it cannot be expressed."
        raise homes.error("selector_vocab_size", f"{vocab} (vocab_size)", fix)
    return int(declared)


def _holds_no_row_per_token(found: Identity) -> bool:
    """Whether the drafter has no table of its own with a row for each token, so that the target's vocabulary counts."""
    return found.family == DFLASH and not any(name in found.names for name in (EMBEDDING, HEAD, MAP))


def _trained_positions(homes: Homes, rotary: Rotary) -> int | None:
    """How many positions it was made for. YaRN's length counts where the target's was copied beside it."""
    declared = homes.integer("max_position_embeddings", default=None)
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
                "The stored rotary frequencies are not those of the config.",
                where=f"{checkpoint.folder}: {name}",
                found=f"{len(values)} frequencies" + (f", of a base of about {base:.4g}" if base else ""),
                accepted=f"{len(plain)} frequencies of the base {rotary.theta:g}",
                fix="The stored ones were trained with: give --extra_options drafter_rope_theta=BASE, or correct "
                "rope_theta.",
            )


def _position_notes(homes: Homes, rotary: Rotary) -> Iterator[str]:
    declared = homes.integer("max_position_embeddings", default=None)
    if rotary.yarn and declared and declared > rotary.yarn.length:
        yield (
            f"YaRN stretches its context to {rotary.yarn.length} positions, max_position_embeddings is {declared}: the "
            "former counts"
        )


def _refuse_other_families(homes: Homes, family: str) -> None:
    """Refuse keys of another kind: the tensors that they describe are not there."""
    for name, key in KEYS.items():
        if key.families and family not in key.families and name in homes and not one_of(homes.data[name], key.accepted):
            error = refusal(homes, key)
            error.details["found"] = (
                f"{short(homes.data[name])} in a {TITLES[family]} drafter, which it is by its tensors"
            )
            raise error


def _check(checkpoint: Checkpoint, found: Identity) -> None:
    """Keys that must agree with the tensors."""
    homes, names, family = found.homes, found.names, found.family
    homes.string("hidden_act", choices=["silu"], default="silu")
    for key in ("projector_type", "speculators_model_type"):
        declared = homes.string(key, default=family)
        if declared != family:
            raise disagreement(homes.place(key), f"the tensors of {checkpoint.folder}", declared, family)
    if homes.boolean("has_embed_tokens", default=False) and EMBEDDING not in names:
        raise _not_stored(checkpoint, homes, "has_embed_tokens", EMBEDDING)
    tied = homes.boolean("tie_word_embeddings", default=False)
    if tied and EMBEDDING in names and HEAD not in names:
        raise homes.error("tie_word_embeddings", "false: the drafter has an embedding of its own, and no head")
    for key in ("dtype", "torch_dtype"):
        homes.string(key, default=None)
    for key in ("enable_confidence_head", "use_confidence_head"):
        if family != DSPARK and homes.boolean(key, default=False):
            raise _not_stored(checkpoint, homes, key, "confidence_head.proj.weight")


def _not_stored(checkpoint: Checkpoint, homes: Homes, key: str, name: str) -> ExportError:
    return ExportError(
        "A part that the config declares is not stored.",
        where=f"{homes.place(key)} and the tensors of {checkpoint.folder}",
        found=f"no {name}",
        accepted=f"the tensor, or {key} false",
        fix="Complete the download.",
    )


def _variant(checkpoint: Checkpoint, found: Identity, hidden: int, block: int) -> DFlash | DFlash2 | DSpark:
    homes = found.homes
    predicts = conventions.anchor_predicts(homes, found.dialect, found.family, block)
    if found.family == DSPARK:
        return markov_head(checkpoint, homes, found.names, hidden, predicts)
    factor = homes.factor("output_multiplier")
    cap = homes.number("final_logit_softcapping", default=None)
    if found.family != DFLASH2:
        return DFlash(factor, cap, predicts)
    group = homes.integer("conv_group_size")
    if hidden % group:
        raise homes.error("conv_group_size", f"a divisor of hidden_size ({hidden})")
    rank = homes.integer("selector_rank")
    return DFlash2(homes.integer("conv_kernel_size"), group, rank, factor, cap, predicts)


def _draft_vocabulary(checkpoint: Checkpoint, found: Identity, vocab: int) -> int | None:
    """The rows of the drafter's own head, after a look at the map to the target's ids, which is small."""
    homes, names = found.homes, found.names
    size = conventions.draft_vocabulary(homes, vocab, MAP in names)
    if size is None or size >= vocab:
        if size is not None and HEAD in names:
            raise homes.error("draft_vocab_size", f"{vocab} (vocab_size): rows beyond it would be drafted")
        return size
    if found.family == DFLASH2:
        raise homes.error("draft_vocab_size", f"{vocab} (vocab_size): a DFlash 2 selector scores the whole vocabulary")
    if HEAD not in names:
        raise _not_stored(checkpoint, homes, "draft_vocab_size", HEAD)
    _check_map(checkpoint, names, size, vocab)
    checkpoint.claim([names(MASK)] if MASK in names else [])
    return size


def _check_map(checkpoint: Checkpoint, names: DraftNames, size: int, vocab: int) -> None:
    offsets, mask = tensor(checkpoint, names, MAP), tensor(checkpoint, names, MASK)
    assert offsets is not None
    if offsets.shape != (size,) or offsets.dtype != "I64" or not offsets.here:
        return  # the tensor plan says so; or the values are still on the Hub
    ids = np.arange(size) + read_integers(offsets)
    used = np.unique(ids)
    if len(used) != size or used[0] < 0 or used[-1] >= vocab:
        raise ExportError(
            "The map from the drafter's rows to the target's ids is wrong.",
            where=f"{checkpoint.folder}: {names(MAP)}",
            found=f"ids from {used[0]} to {used[-1]}, {size - len(used)} of them more than once",
            accepted=f"different ids from 0 to {vocab - 1}, each its row plus d2t",
            fix="Get the weights again from where the drafter comes from.",
        )
    if mask is None:
        return
    good = mask.dtype in ("BOOL", "I64", "I32") and mask.shape == (vocab,)
    if not good or not np.array_equal(np.flatnonzero(read_integers(mask)), used):
        raise ExportError(
            "The two maps of the vocabulary disagree.",
            where=f"{checkpoint.folder}: {names(MASK)} and {names(MAP)}",
            found=f"{mask.dtype} {list(mask.shape)}" if not good else "other tokens in the one than in the other",
            accepted=f"true at the {size} ids that d2t leads to, of {vocab}",
            fix="Get the weights again from where the drafter comes from.",
        )


def _notes(checkpoint: Checkpoint, found: Identity, rotary: Rotary, rope_theta: float | None) -> Iterator[str]:
    """What is left without effect on purpose, and what is done in another way than in training."""
    homes, dialect = found.homes, found.dialect
    for key in ("output_multiplier", "final_logit_softcapping"):
        if found.family == DSPARK and key in homes:
            homes.number(key)
            yield f"{key} is not applied: a Markov head is trained on the head's own logits"
    windows = [layer.window for layer in conventions.layers(homes, 1) if layer.window]
    if dialect.one_bound and windows:
        yield (
            f"{dialect.name} trains all rows of a block with one bound, {windows[0]} positions before the anchor, "
            f"which for the anchor's row alone is a window of {windows[0] + 1}. Here each row has its own window of "
            f"{windows[0]}, as vLLM serves it: row j of a block sees j + 1 positions of the context fewer than in "
            "training, which costs nothing before the context is longer than the window"
        )
    if dialect.unsaid_window and not windows:
        yield dialect.unsaid_window
    if rope_theta is not None:
        written = conventions.rotary(homes, rotary.dim, conventions.layer_kinds(homes)).theta
        yield f"its rotary base is {rope_theta:g}, as drafter_rope_theta asks for; config.json says {written:g}"
    elif found.family in dialect.theta_in_doubt:
        yield dialect.theta_in_doubt[found.family]
    yield from _position_notes(homes, rotary)
    if checkpoint.file(MASK_FILE):
        yield f"{MASK_FILE} holds the mask token's row: it stands in the place of the embedding's, as when serving"
    fused = tensor(checkpoint, found.names, "fc.weight")
    for key in ("dtype", "torch_dtype"):
        known = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
        declared = homes.data.get(key)
        if fused and declared and known.get(declared, fused.dtype) != fused.dtype:
            yield f"config.json says {declared}, the tensors are {fused.dtype}; the tensors count"
