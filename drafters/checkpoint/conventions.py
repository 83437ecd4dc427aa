"""What producers disagree about, one function each: they apply what the producers' records in ``dialects`` say.

A mistake here costs acceptance, and comparing texts does not show it. docs/producers.md has each producer's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drafters.checkpoint.config import LayerAttention
from drafters.checkpoint.dialects import DIALECTS
from drafters.checkpoint.dialects.dialect import Dialect, Tap
from drafters.checkpoint.keys import CAUSAL_KEYS
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.sections import ConfigSections, rope_view
from onnxkit.errors import ExportError
from onnxkit.json_object import disagreement
from onnxkit.rotary import Rotary
from onnxkit.rotary_config import read_rotary

FULL, SLIDING = "full_attention", "sliding_attention"
RAW, NORMED = "raw", "normed"
_AGAIN = "Get config.json again from where the drafter comes from."

# What each list of the target's layers counts; where there are several, a list of outputs stands for all.
_TAPS = {key: tap for dialect in DIALECTS for key, tap in dialect.taps.items()}
TAP_KEYS = tuple(sorted(_TAPS, key=lambda key: _TAPS[key].offset))


def target_layers(sections: ConfigSections) -> tuple[int, ...]:
    """The target's layers whose *output* is read, in the order in which they are put together.

    Some producers list layers whose input is read. The input of layer n is the output of layer n - 1; that of layer 0
    is the embedding, which cannot be tapped. No layers are ever guessed: the published formulas are wrong for most
    releases.

    Raises:
        ExportError: None are named, one is named twice, is the embedding, or two keys disagree.
    """
    key = sections.first_of(*TAP_KEYS) or TAP_KEYS[0]
    named = dict.fromkeys((key, *(name for name in TAP_KEYS if name in sections)))
    found = {name: _outputs(sections, name, _TAPS[name]) for name in named}
    for name, layers in found.items():
        if layers != found[key]:
            said = (_in_words(sections.data[n], found[n], _TAPS[n]) for n in (key, name))
            raise disagreement(sections.place(key), sections.place(name), *said)
    if "num_taps" in sections and sections.integer("num_taps") != len(found[key]):
        raise sections.error("num_taps", f"{len(found[key])}, the number of taps in {key}", _AGAIN)
    return found[key]


def _in_words(written: Sequence[int], layers: Sequence[int], tap: Tap) -> str:
    """A list of taps with its meaning: two lists may look the same and mean different layers."""
    outputs = ", ".join(map(str, layers))
    return f"{list(written)}{', the inputs of these layers' if tap is Tap.INPUT else ''} (the outputs of {outputs})"


def _outputs(sections: ConfigSections, key: str, tap: Tap) -> tuple[int, ...]:
    ids = sections.integers(key)
    if not ids or len(set(ids)) != len(ids) or min(ids) < tap.offset:
        read, embedding = ("input", 0) if tap is Tap.INPUT else ("output", -1)
        what = f"its {read} is read; {embedding}, the embedding, is not"
        raise sections.error(key, f"at least one layer of the target, each once, from {tap.offset} ({what})", _AGAIN)
    return tuple(layer - tap.offset for layer in ids)


def block_size(sections: ConfigSections, option: int | None) -> int:
    """The rows of a block: the anchor's and the masks'.

    Raises:
        ExportError: It is missing, or the option says something else.
    """
    if "block_size" not in sections and option is not None:
        return option
    if "block_size" not in sections:
        fix = "Add it, or give --extra_options drafter_block_size=N with the N that it was trained with."
        raise sections.error("block_size", "a whole number from 2", fix)
    size = int(sections.integer("block_size", minimum=2))
    if option is not None and option != size:
        raise ExportError(
            "An option's value does not fit the drafter.",
            where=f"--extra_options drafter_block_size={option} and {sections.place('block_size')}",
            found=f"{option} and {size}",
            accepted=f"{size}: the config says what the drafter was trained with",
            fix="Leave the option out; dflash2_num_draft_tokens and dspark_num_draft_tokens make blocks shorter.",
        )
    return size


def mask_token(sections: ConfigSections, vocab_size: int) -> int:
    """The token of the rows that are not the anchor: a row of the target's embedding, perhaps not the tokenizer's.

    Every producer calls it ``mask_token_id``. It is never the tokenizer's own mask token.

    Raises:
        ExportError: It is missing or beyond the vocabulary.
    """
    token = int(sections.integer("mask_token_id", minimum=0))
    if token >= vocab_size:
        raise sections.error("mask_token_id", f"a whole number from 0 up to {vocab_size - 1} (vocab_size {vocab_size})")
    return token


def anchor_predicts(sections: ConfigSections, dialect: Dialect, family: Family, block: int) -> bool:
    """Whether the anchor's row predicts. If so, row ``j`` predicts the token at ``j + 1``, else the one at ``j``.

    Where no key says it, the producer's training decides, or the drafts that a run is asked for: as many as the block
    has rows, or one fewer.

    Raises:
        ExportError: Two keys disagree, or nothing tells.
    """
    rules = [other.anchor for other in DIALECTS if other.anchor.key]
    said = {str(rule.key): sections.boolean(str(rule.key), default=None) for rule in rules}
    agreed = sections.agreed({str(rule.key): said[str(rule.key)] for rule in rules if family in rule.families})
    known = dialect.anchor.absent[family] if agreed is None else agreed
    if known is not None:
        return bool(known)
    _, drafts = _asked_drafts(sections) or ("", None)
    if drafts not in (block - 1, block):
        key = str(dialect.anchor.key)
        fix = f"Add {key}: true if the anchor's row was trained to predict, else false."
        raise sections.error(key, f"true or false; speculative_tokens ({drafts}) does not tell", fix)
    return drafts == block


def check_drafts(sections: ConfigSections, block: int) -> None:
    """Check that the number of drafts does not exceed the rows of a block.

    Raises:
        ExportError: A description of a run asks for more.
    """
    place, drafts = _asked_drafts(sections) or ("", 0)
    if drafts > block:
        raise ExportError(
            "A drafter is asked for more drafts than it was trained for.",
            where=f"{place} and {sections.place('block_size')}",
            found=f"{drafts} and {block}",
            accepted="at most one draft for each row of a block",
            fix=_AGAIN,
        )


def _asked_drafts(sections: ConfigSections) -> tuple[str, int] | None:
    asked = (dialect.asked_drafts(sections) for dialect in DIALECTS if dialect.asked_drafts)
    return next((found for found in asked if found), None)


def layers(sections: ConfigSections, block: int) -> tuple[LayerAttention, ...]:
    """How each layer attends: its window, the row itself included, and whether its block is causal.

    A layer slides where ``layer_types`` says so, or every layer by a producer's own switch. Where no key says anything
    of causality, the layers that slide by ``layer_types`` are causal, and no others.

    The attention operator bounds a row on its left only. So a block that is not causal must fit into its window, and so
    must a block that has no window while the context has one.

    Raises:
        ExportError: Keys are missing or contradict each other, or the operator cannot do what they say.
    """
    kinds, window_key, switch = layer_kinds(sections), "sliding_window", None
    for windows in (dialect.windows for dialect in DIALECTS):
        if windows.switch and windows.size:
            switched = sections.boolean(windows.switch, default=None)
            sections.integer(windows.size, default=None)  # a wrong type is told where nothing slides, too
            if windows.size in sections and switched is None:
                raise sections.error(windows.switch, f"true or false, since there is a {windows.size}")
            switch, window_key = (windows.switch, windows.size) if switched else (switch, window_key)
    causal = _causal(sections, slides=switch is not None or SLIDING in kinds)
    sections.integer("sliding_window", default=None)
    sections.integer("max_window_layers", minimum=0, default=None)
    others = LayerAttention(None, causal or False)
    if SLIDING not in kinds and not switch:
        return tuple(others for _ in kinds)
    if window_key not in sections:
        by_types = "layers slide by layer_types, or by use_sliding_window and max_window_layers"
        why = f"{switch} is true" if switch else by_types
        raise sections.error(window_key, f"a whole number from 1, since {why}")
    window = int(sections.integer(window_key))
    if switch and SLIDING in kinds:
        raise disagreement(sections.place("layer_types"), sections.place(switch), SLIDING, "true")
    by_default = not switch and not sections.boolean("sliding_window_non_causal", default=False)
    slides = LayerAttention(window, by_default if causal is None else causal)
    if window < block and (switch or not slides.causal):
        raise sections.error(
            window_key,
            f"at least block_size ({block}), since the block {'has no window' if switch else 'is not causal'}",
            "The attention operator has no right bound; such a drafter cannot be expressed.",
        )
    return tuple(slides if switch or kind == SLIDING else others for kind in kinds)


def _causal(sections: ConfigSections, *, slides: bool) -> bool | None:
    """What the config says of causality within the block of every layer; None if it says nothing.

    ``sliding_window_non_causal`` says the opposite, of layers that slide.
    """
    said = {key: sections.boolean(key, default=None) for key in CAUSAL_KEYS}
    causal = sections.agreed(said)
    bidirectional = sections.boolean("sliding_window_non_causal", default=None)
    if causal is not None and bidirectional is causal and (slides or causal):
        key = next(key for key, value in said.items() if value is not None)
        value = str(causal).lower()
        raise disagreement(sections.place(key), sections.place("sliding_window_non_causal"), value, value)
    return None if causal is None else bool(causal)


def layer_kinds(sections: ConfigSections) -> tuple[str, ...]:
    """Each layer's kind. Without ``layer_types``, Qwen 3 slides from layer ``max_window_layers`` on, if
    ``use_sliding_window`` is true.

    Raises:
        ExportError: The list has another length or other entries, or contradicts ``use_sliding_window``.
    """
    count = sections.integer("num_hidden_layers")
    if "layer_types" in sections:
        kinds, asked = sections.strings("layer_types"), sections.boolean("use_sliding_window", default=True)
        if len(kinds) != count or not set(kinds) <= {FULL, SLIDING}:
            raise sections.error("layer_types", f"{count} entries (num_hidden_layers), each {FULL} or {SLIDING}")
        if SLIDING in kinds and not asked:
            raise disagreement(sections.place("layer_types"), sections.place("use_sliding_window"), SLIDING, "false")
        return tuple(kinds)
    if not sections.boolean("use_sliding_window", default=False):
        return (FULL,) * count
    first = sections.integer("max_window_layers", minimum=0)
    return tuple(SLIDING if layer >= first else FULL for layer in range(count))


def rotary(sections: ConfigSections, head_dim: int, kinds: Sequence[str], theta: float | None = None) -> Rotary:
    """The rotary embedding, over whole heads, one half of a head against the other.

    The base is never guessed. Keys of a part of a head were copied from the target's configuration: no drafter that is
    taken here rotates a part. ``theta`` is a base to try in place of the one that is written
    (``drafter_rope_theta``).

    Raises:
        ExportError: A key is missing, places disagree, or the scaling is another one.
    """
    read = read_rotary(rope_view(sections, set(kinds)), head_dim, partial=False)
    return read if theta is None else replace(read, theta=theta)


def last_tap(dialect: Dialect, option: str | None) -> str:
    """What a tap on the target's last layer is: ``raw``, the residual stream, or ``normed``, after the final norm.

    It is what the drafter's producer captures in training, unless the option ``last_tap`` says otherwise.
    """
    return option or (NORMED if dialect.normed_last_tap else RAW)


def draft_vocabulary(sections: ConfigSections, vocab_size: int, mapped: bool) -> int | None:
    """Rows of a head of the drafter's own; None if they are the vocabulary's.

    Fewer rows than the vocabulary has need ``d2t``, which leads to the target's ids (id = row + ``d2t[row]``). More are
    padding: the rows are the same tokens. A plain DFlash drafter without tables of its own has no row for each token,
    so that it fits a target whose vocabulary is padded or trimmed.

    Raises:
        ExportError: There are fewer rows and no map to the target's ids, or a map that nothing declares.
    """
    size = sections.integer("draft_vocab_size", default=None)
    if size is None or size == vocab_size:
        if mapped:
            raise sections.error("draft_vocab_size", "the number of rows of the stored d2t")
        return None
    if size < vocab_size and not mapped:
        raise sections.error(
            "draft_vocab_size",
            f"{vocab_size} (vocab_size), or more: fewer need the tensors d2t and lm_head",
            "Complete the download, or correct draft_vocab_size.",
        )
    if size > vocab_size and mapped:
        raise sections.error("draft_vocab_size", f"fewer than {vocab_size} (vocab_size), since d2t maps its rows")
    return int(size)
