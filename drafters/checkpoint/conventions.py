"""What producers disagree about, one function each. A mistake here costs acceptance, and no test of text shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drafters.checkpoint.config import LayerAttention
from drafters.checkpoint.dialects.dialect import Dialect
from drafters.checkpoint.homes import Homes, rope_view
from drafters.checkpoint.kinds import Family
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject, disagreement
from onnxkit.rotary import Rotary
from onnxkit.rotary_config import read_rotary

FULL, SLIDING = "full_attention", "sliding_attention"
RAW, NORMED = "raw", "normed"
_AGAIN = "Get config.json again from where the drafter comes from."


def target_layers(homes: Homes) -> tuple[int, ...]:
    """The target's layers whose *output* is read, in the order in which they are put together.

    ==================================== ============================== ==================
    key                                  written by                     its number ``n``
    ==================================== ============================== ==================
    ``target_layer_ids``                 z-lab, Inco, SpecForge,        output of layer n
                                         ModelOpt, DeepSpec,
                                         TorchSpec, Automodel,
                                         verl-SpeCo
    ``aux_hidden_state_layer_ids``       speculators                    input of layer n
    ``eagle_aux_hidden_state_layer_ids`` ModelOpt, beside the first     input of layer n
    ==================================== ============================== ==================

    The input of layer n is the output of layer n - 1; that of layer 0 is the embedding, which cannot be tapped. No
    layers are ever guessed: the published formulas are wrong for most releases.

    Raises:
        ExportError: None are named, one is named twice, is the embedding, or two keys disagree.
    """
    entering = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
    key = homes.first_of("target_layer_ids", *entering) or "target_layer_ids"
    found: dict[str, tuple[int, ...]] = {}
    for name, offset in ((key, int(key in entering)), *((name, 1) for name in entering if name in homes)):
        ids = homes.integers(name)
        if not ids or len(set(ids)) != len(ids) or min(ids) < offset:
            what = (
                "its input is read; 0, the embedding, is not"
                if offset
                else "its output is read; -1, the embedding, is not"
            )
            raise homes.error(name, f"at least one layer of the target, each once, from {offset} ({what})", _AGAIN)
        found[name] = tuple(layer - offset for layer in ids)
    for name, layers in found.items():
        if layers != found[key]:
            raise disagreement(homes.place(key), homes.place(name), *(list(homes.data[n]) for n in (key, name)))
    if "num_taps" in homes and homes.integer("num_taps") != len(found[key]):
        raise homes.error("num_taps", f"{len(found[key])}, the number of taps in {key}", _AGAIN)
    return found[key]


def block_size(homes: Homes, option: int | None) -> int:
    """The rows of a block: the anchor's and the masks'.

    ============================ ======================================
    producer                     where it stands
    ============================ ======================================
    z-lab generation 1           top level
    z-lab generation 2, DFlash 2 ``dflash_config``
    SpecForge, ModelOpt          top level, also ``dflash_config``
    DeepSpec, Muse               flat
    speculators                  top level; 8 where it is left out
    TorchSpec                    nowhere: ``drafter_block_size`` says it
    ============================ ======================================

    Raises:
        ExportError: It is missing, or the option says something else.
    """
    if "block_size" not in homes and option is not None:
        return option
    if "block_size" not in homes:
        fix = "Add it, or give --extra_options drafter_block_size=N with the N that it was trained with."
        raise homes.error("block_size", "a whole number from 2", fix)
    size = int(homes.integer("block_size", minimum=2))
    if option is not None and option != size:
        raise ExportError(
            "An option's value does not fit the drafter.",
            where=f"--extra_options drafter_block_size={option} and {homes.place('block_size')}",
            found=f"{option} and {size}",
            accepted=f"{size}: the config says what the drafter was trained with",
            fix="Leave the option out; dflash2_num_draft_tokens and dspark_num_draft_tokens make blocks shorter.",
        )
    return size


def mask_token(homes: Homes, vocab_size: int) -> int:
    """The token of the rows that are not the anchor: a row of the target's embedding, perhaps of no tokenizer.

    Every producer calls it ``mask_token_id``: z-lab, SpecForge and ModelOpt in ``dflash_config`` (a release of
    RadixArk's in ``dspark_config``), the others flat. It is never the tokenizer's own mask token.

    Raises:
        ExportError: It is missing or beyond the vocabulary.
    """
    token = int(homes.integer("mask_token_id", minimum=0))
    if token >= vocab_size:
        raise homes.error("mask_token_id", f"a whole number from 0 up to {vocab_size - 1} (vocab_size {vocab_size})")
    return token


def anchor_predicts(homes: Homes, dialect: Dialect, family: Family, block: int) -> bool:
    """Whether the anchor's row predicts. If so, row ``j`` predicts the token at ``j + 1``, else the one at ``j``.

    ====================================== ============================= ===================
    drafter                                key                           where it is absent
    ====================================== ============================= ===================
    DFlash and DFlash 2                    ``sample_from_anchor``        false
    DSpark of SpecForge, DeepSpec          none                          true
    DSpark of ModelOpt                     ``shift_label``               true
    DSpark of speculators                  ``sample_from_anchor``        by its drafts
    DFlash of DeepSpec (Markov rank 0)     none                          true
    ====================================== ============================= ===================

    speculators' class and the programs that serve it have opposite defaults. Where the key is left out, its
    ``speculative_tokens`` must tell: as many as the block has rows, or one fewer.

    Only speculators trains DFlash and DFlash 2 so that the anchor's row predicts.

    Raises:
        ExportError: Two keys disagree, or nothing tells.
    """
    sampled = homes.boolean("sample_from_anchor", default=None)
    shifted = homes.boolean("shift_label", default=None)
    if family != Family.DSPARK:
        return bool(sampled)
    said = homes.agreed({"sample_from_anchor": sampled, "shift_label": shifted})
    if said is not None:
        return bool(said)
    if not dialect.one_bound:
        return True
    _, drafts = _speculative_tokens(homes)
    if drafts not in (block - 1, block):
        fix = "Add sample_from_anchor: true if the anchor's row was trained to predict, else false."
        raise homes.error("sample_from_anchor", f"true or false; speculative_tokens ({drafts}) does not tell", fix)
    return drafts == block


def check_drafts(homes: Homes, block: int) -> None:
    """See that no more drafts are asked for than a block has rows.

    Raises:
        ExportError: speculators' description of a run asks for more.
    """
    place, drafts = _speculative_tokens(homes)
    if drafts is not None and drafts > block:
        raise ExportError(
            "A drafter is asked for more drafts than it was trained for.",
            where=f"{place} and {homes.place('block_size')}",
            found=f"{drafts} and {block}",
            accepted="at most one draft for each row of a block",
            fix=_AGAIN,
        )


def _speculative_tokens(homes: Homes) -> tuple[str, int | None]:
    """How many drafts speculators' description of a run asks for, and where."""
    if "speculators_config" not in homes:
        return "", None
    section = homes.section("speculators_config")
    methods = section.data.get("proposal_methods") or []
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise section.error("proposal_methods", "a list of objects {...}")
    for number, method in enumerate(methods):
        entry = JsonObject(method, f"{section.place('proposal_methods')}[{number}]")
        if (drafts := entry.integer("speculative_tokens", default=None)) is not None:
            return entry.place("speculative_tokens"), int(drafts)
    return "", None


def layers(homes: Homes, block: int) -> tuple[LayerAttention, ...]:
    """How each layer attends: its window, the row itself included, and whether its block is causal.

    ============ ===================== ========================================= ===================================
    producer     layers that slide     causal within the block                   lower bound of row q
    ============ ===================== ========================================= ===================================
    z-lab        ``layer_types``       ``is_causal``, else those that slide      p > q - W
    SpecForge    ``layer_types``       those that slide                          p > q - W
    Automodel    ``layer_types``       ``causal``, else those that slide         p > q - W
    JetSpec      ``layer_types``       ``causal_head``                           p > q - W
    speculators  ``layer_types``       those that slide, unless                  one for the whole block:
                                       ``sliding_window_non_causal``             p >= anchor - W; here p > q - W
    ModelOpt     all with ``use_swa``  ``causal``, else none                     p > q - W of the context, none
                                                                                 within the block
    DeepSpec     none                  none                                      none
    TorchSpec    none                  none                                      none
    verl-SpeCo   none                  none                                      none
    ============ ===================== ========================================= ===================================

    The attention operator bounds a row on its left only. So a block that is not causal must fit into its window, and so
    must ModelOpt's in any case.

    Raises:
        ExportError: Keys are missing or contradict each other, or the operator cannot do what they say.
    """
    kinds, forced = layer_kinds(homes), bool(homes.boolean("use_swa", default=False))
    causal = _causal(homes, slides=forced or SLIDING in kinds)
    for key in ("sliding_window", "swa_window_size"):
        homes.integer(key, default=None)  # a wrong type is told where nothing slides, too
    homes.integer("max_window_layers", minimum=0, default=None)
    if "swa_window_size" in homes and "use_swa" not in homes:
        raise homes.error("use_swa", "true or false, since there is a swa_window_size")
    if SLIDING not in kinds and not forced:
        return tuple(LayerAttention(None, causal or False) for _ in kinds)
    window_key = "swa_window_size" if forced else "sliding_window"
    if window_key not in homes:
        why = (
            "use_swa is true"
            if forced
            else "layers slide by layer_types, or by use_sliding_window and max_window_layers"
        )
        raise homes.error(window_key, f"a whole number from 1, since {why}")
    window = int(homes.integer(window_key))
    if forced and SLIDING in kinds:
        raise disagreement(homes.place("layer_types"), homes.place("use_swa"), SLIDING, "true")
    if forced:
        slides = LayerAttention(window, causal or False)
    else:
        default = not homes.boolean("sliding_window_non_causal", default=False)
        slides = LayerAttention(window, default if causal is None else causal)
    if window < block and (forced or not slides.causal):
        raise homes.error(
            window_key,
            f"at least block_size ({block}), since the block {'has no window' if forced else 'is not causal'}",
            "The attention operator has no right bound; such a drafter cannot be expressed.",
        )
    return tuple(slides if forced or kind == SLIDING else LayerAttention(None, causal or False) for kind in kinds)


def _causal(homes: Homes, *, slides: bool) -> bool | None:
    """What the config says of causality within the block of every layer; None where it says nothing.

    ``sliding_window_non_causal`` says the opposite, of layers that slide.
    """
    keys = ("is_causal", "causal", "dflash_query_causal", "causal_head")
    said = {key: homes.boolean(key, default=None) for key in keys}
    causal = homes.agreed(said)
    bidirectional = homes.boolean("sliding_window_non_causal", default=None)
    if causal is not None and bidirectional is causal and (slides or causal):
        key = next(key for key, value in said.items() if value is not None)
        value = str(causal).lower()
        raise disagreement(homes.place(key), homes.place("sliding_window_non_causal"), value, value)
    return None if causal is None else bool(causal)


def layer_kinds(homes: Homes) -> tuple[str, ...]:
    """Each layer's kind. Without ``layer_types``, Qwen 3 slides from layer ``max_window_layers`` on, where asked to.

    Raises:
        ExportError: The list has another length or other entries, or contradicts ``use_sliding_window``.
    """
    count = homes.integer("num_hidden_layers")
    if "layer_types" in homes:
        kinds, asked = homes.strings("layer_types"), homes.boolean("use_sliding_window", default=True)
        if len(kinds) != count or not set(kinds) <= {FULL, SLIDING}:
            raise homes.error("layer_types", f"{count} entries (num_hidden_layers), each {FULL} or {SLIDING}")
        if SLIDING in kinds and not asked:
            raise disagreement(homes.place("layer_types"), homes.place("use_sliding_window"), SLIDING, "false")
        return tuple(kinds)
    if not homes.boolean("use_sliding_window", default=False):
        return (FULL,) * count
    first = homes.integer("max_window_layers", minimum=0)
    return tuple(SLIDING if layer >= first else FULL for layer in range(count))


def rotary(homes: Homes, head_dim: int, kinds: Sequence[str], theta: float | None = None) -> Rotary:
    """The rotary embedding, over whole heads, one half of a head against the other.

    ======================== ======================================================= =================
    producer                 where it stands                                         scaling
    ======================== ======================================================= =================
    z-lab generation 1       ``rope_theta``, ``rope_scaling``                        none or YaRN
    z-lab generation 2       ``rope_parameters``                                     none
    SpecForge                both, the older one without ``rope_theta``              none or YaRN
    ModelOpt                 ``rope_theta``, ``rope_scaling``                        none or YaRN, of any length
    DeepSpec, TorchSpec      ``rope_parameters``, or flat                            none or YaRN
    speculators              ``transformer_layer_config``, perhaps by kind of layer  none or YaRN
    ======================== ======================================================= =================

    The base is never guessed. Keys of a part of a head were copied from the target's configuration: no drafter that is
    taken here rotates a part. ``theta`` is a base to try in place of the one that is written
    (``drafter_rope_theta``).

    Raises:
        ExportError: A key is missing, places disagree, or the scaling is another one.
    """
    read = read_rotary(rope_view(homes, set(kinds)), head_dim, partial=False)
    return read if theta is None else replace(read, theta=theta)


def last_tap(dialect: Dialect, option: str | None) -> str:
    """What a tap on the target's last layer is: ``raw``, the residual stream, or ``normed``, behind the final norm.

    ================================== ======================================================= ==========
    producer                           how it captures layers while it trains                  last layer
    ================================== ======================================================= ==========
    z-lab, ModelOpt, DeepSpec          transformers' ``hidden_states``, whose last one is the  ``normed``
                                       final norm's output
    Automodel                          hooks on the layers                                     ``raw``
    speculators, SpecForge, TorchSpec  the stream of a serving engine                          ``raw``
    verl-SpeCo, unknown                not known                                               ``raw``
    ================================== ======================================================= ==========

    The option ``last_tap`` says otherwise.
    """
    return option or (NORMED if dialect.normed_last_tap else RAW)


def draft_vocabulary(homes: Homes, vocab_size: int, mapped: bool) -> int | None:
    """Rows of a head of the drafter's own; None where they are the vocabulary's.

    A plain DFlash drafter without tables of its own has no row for each token, so that it fits a target whose
    vocabulary is padded or trimmed.

    ============ ============================ ==================================================
    producer     key                          tensors
    ============ ============================ ==================================================
    speculators  ``draft_vocab_size``         ``lm_head``, ``d2t`` (target id = row + ``d2t[row]``), ``t2d``
    the others   none, or ``vocab_size``      none: the target's head
    ============ ============================ ==================================================

    A number above the vocabulary's is padding, and the rows are the same tokens.

    Raises:
        ExportError: There are fewer rows and no map to the target's ids, or a map that nothing declares.
    """
    size = homes.integer("draft_vocab_size", default=None)
    if size is None or size == vocab_size:
        if mapped:
            raise homes.error("draft_vocab_size", "the number of rows of the stored d2t")
        return None
    if size < vocab_size and not mapped:
        raise homes.error(
            "draft_vocab_size",
            f"{vocab_size} (vocab_size), or more: fewer need the tensors d2t and lm_head",
            "Complete the download, or correct draft_vocab_size.",
        )
    if size > vocab_size and mapped:
        raise homes.error("draft_vocab_size", f"fewer than {vocab_size} (vocab_size), since d2t maps its rows")
    return int(size)
