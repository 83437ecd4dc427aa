"""The table of ``--extra_options``: read by the command line, by ``--help`` and by the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.hub_name import HubName, folder_or_hub
from builder.option import ANY_DRAFTER, PACKED, PACKED_ITSELF, Option, Scope, drafter_of, option, rows
from builder.peer_options import not_understood, peer_option, refused_option
from drafters.checkpoint.kinds import Family
from genai_config.runtime import ENGINE_DRAFTS
from onnxkit.errors import ExportError

# The largest number that the runtime's configuration takes.
_LARGEST = 2**31 - 1


def _whole(minimum: int, maximum: int = _LARGEST) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.isascii() else None
        if value is None or not minimum <= value <= maximum:
            raise ValueError(text)
        return value

    return parse


def _flag(text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise ValueError(text)
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _base(text: str) -> float:
    value = float(text)
    if not 1 < value < float("inf"):
        raise ValueError(text)
    return value


def _one_of(*accepted: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in accepted:
            raise ValueError(text)
        return text

    return parse


def _page(text: str) -> int:
    value = _whole(16)(text)
    if value & (value - 1):
        raise ValueError(text)
    return value


def _folder(text: str) -> Path | HubName:
    if not text:
        raise ValueError(text)
    return folder_or_hub(text, "--extra_options")


def _layers(text: str) -> tuple[int, ...]:
    """A list; a blank one counts as not given, since scripts that fill in variables write it so."""
    if not text:
        return ()
    layers = tuple(_whole(1)(part.strip()) for part in text.split(","))
    if len(set(layers)) != len(layers):
        raise ValueError(text)
    return layers


# Options of every drafter, and of some kinds.
_ANY = Scope(kinds=ANY_DRAFTER)
_DFLASH, _DSPARK = Scope(kinds=(Family.DFLASH, Family.DFLASH2)), Scope(kinds=(Family.DSPARK,))


@dataclass(frozen=True, kw_only=True)
class ExtraOptions:
    """The table of ``--extra_options``, a field each; the values of those that are not given leave them to others."""

    context_length: int | None = option(
        _whole(1),
        "a whole number from 1 to the longest context of the checkpoint",
        "the checkpoint's longest (max_position_embeddings, or what YaRN stretches it to)",
        "tokens that a sequence may have; sizes the rotary tables and search.max_length",
    )
    include_hidden_states: bool = option(
        _flag,
        "true or false",
        "false",
        "a further output hidden_states: the final norm's output for every token",
        unset=False,
    )
    prune_lm_head: bool = option(
        _flag,
        "true or false",
        "true",
        "logits of the last token only (dense), or of the tokens that the Engine asks for (packed)",
        unset=True,
    )
    aux_hidden_state_layers: tuple[int, ...] = option(
        _layers,
        "layer numbers from 1 to the number of layers, each once, separated by commas; blank for none",
        "none",
        "a further output aux_hidden_states: the residual stream entering these layers, side by side",
        unset=(),
    )
    allow_nonfinite: bool = option(
        _flag,
        "true or false",
        "false",
        "take weights that are infinite or NaN as they are; otherwise they are named and refused",
        unset=False,
    )
    last_tap: str | None = option(
        _one_of("raw", "normed"),
        "raw or normed; only where the target's last layer is tapped",
        "raw, or as the drafter's producer captures it",
        "a tap on the last layer: the residual stream before the final norm, or behind it",
    )
    use_paged_attention: bool | None = option(
        _flag,
        "true or false",
        "false",
        "the packed layout, for the Engine",
        PACKED_ITSELF,
    )
    paged_block_size: int | None = option(
        _page,
        "a power of two from 16; with a drafter that has attention sinks from 64 to 256, by the width of its heads",
        "256",
        "tokens in a page of the cache",
        PACKED,
    )
    state_update_capacity: int | None = option(
        _whole(0, 8),
        "a whole number from 0 to 8",
        "0, or max_draft_tokens with a drafter",
        "drafts per step that the linear layers can take back; 0 means no drafts",
        PACKED,
    )
    max_draft_tokens: int | None = option(
        _whole(1, ENGINE_DRAFTS),
        "a whole number from 1 to 7, at most state_update_capacity",
        "left to the runtime, or the drafts of a block, at most 7, with a drafter",
        "drafts per step; the Engine takes no more than 7",
        PACKED,
    )
    max_batch_size: int | None = option(
        _whole(1, 256),
        "a whole number from 1 to 256",
        "16, or fewer where a drafter's cache would pass 8 GB",
        "requests that run at once",
        PACKED,
    )
    max_scheduled_tokens: int | None = option(
        _whole(1),
        "a whole number from 1, more than max_draft_tokens where there are drafts, up to 2147483647",
        "left to the runtime",
        "tokens of all requests in one step; with fewer than a request's drafts and one more it drafts less",
        PACKED,
    )
    num_blocks: int | None = option(
        _whole(1),
        "a whole number from 1, with room for a drafter's own cache; not together with gpu_utilization_factor",
        "left to the runtime",
        "pages of the cache",
        PACKED,
    )
    gpu_utilization_factor: float | None = option(
        _fraction,
        "a number above 0 and at most 1; not together with num_blocks",
        "0.6, unless num_blocks is given",
        "share of the GPU's memory from which the number of pages follows",
        PACKED,
    )
    paged_chunk_size: int | None = option(
        _whole(1),
        "a whole number from 1",
        "left to the runtime",
        "tokens of a prompt in one step (search.chunk_size)",
        PACKED,
    )
    enable_cuda_graph: bool | None = option(
        _flag,
        "true or false",
        "true",
        "the Engine records a step's kernels once and replays them, for target and drafter",
        PACKED,
    )
    prefix_caching: bool | None = option(
        _flag,
        "true or false; true not with a DSpark drafter",
        "left to the runtime",
        "whether prompts that begin alike share pages",
        PACKED,
    )
    drafter_path: Path | HubName | None = option(
        _folder,
        f"a folder with {drafter_of(_ANY.kinds)}, or owner/name[@revision] on the Hub",
        "none",
        "a block drafter beside the target; implies the packed layout, taps and state updates",
        PACKED_ITSELF,
        takes=_ANY.kinds,
    )
    dflash2_path: Path | HubName | None = option(
        _folder,
        f"a folder with {drafter_of(_DFLASH.kinds)}, or owner/name[@revision] on the Hub",
        "none",
        "the same, of these kinds only",
        PACKED_ITSELF,
        takes=_DFLASH.kinds,
    )
    dspark_path: Path | HubName | None = option(
        _folder,
        f"a folder with {drafter_of(_DSPARK.kinds)}, or owner/name[@revision] on the Hub",
        "none",
        "the same, of this kind only",
        PACKED_ITSELF,
        takes=_DSPARK.kinds,
    )
    drafter_block_size: int | None = option(
        _whole(2, 1024),
        "a whole number from 2 to 1024; the block_size of the drafter's config, where it has one",
        "what the drafter's config says",
        "rows of the blocks that it was trained with, where its config does not say (TorchSpec)",
        _ANY,
        sets="block_size",
    )
    drafter_rope_theta: float | None = option(
        _base,
        "a number above 1",
        "what the drafter's config says",
        "a rotary base to try in place of that of its config, which some exporters wrote wrongly",
        _ANY,
        sets="rope_theta",
    )
    dflash2_num_draft_tokens: int | None = option(
        _whole(1),
        "a whole number from 1 to block_size - 1",
        "block_size - 1",
        "drafts of a block; fewer make a shorter block",
        _DFLASH,
        sets="drafts",
    )
    dflash2_top_k: int | None = option(
        _whole(1),
        "a whole number from 1 to the vocabulary's size; the selector_top_k of a DFlash 2 drafter",
        "selector_top_k, or 16 of a plain DFlash drafter",
        "candidates of each position of a block",
        _DFLASH,
        sets="top_k",
    )
    dspark_num_draft_tokens: int | None = option(
        _whole(2),
        "a whole number from 2 to block_size",
        "block_size",
        "drafts of a block; fewer make a shorter block",
        _DSPARK,
        sets="drafts",
    )
    dspark_top_k: int | None = option(
        _whole(1),
        "a whole number from 1 to the vocabulary's size",
        "16",
        "candidates of each position of a block",
        _DSPARK,
        sets="top_k",
    )


OPTIONS = rows(ExtraOptions)
DRAFTER_PATHS = tuple(option.name for option in OPTIONS if option.takes)


def drafter_setting(what: str, kind: str) -> Option:
    """The option that sets a property of drafters of a kind."""
    return next(option for option in OPTIONS if option.sets == what and kind in option.scope.kinds)


def parse_extra_options(pairs: Sequence[str]) -> dict[str, Any]:
    """The values of ``key=value`` texts by key.

    Raises:
        ExportError: A text has no ``=``, a key is unknown or given twice with two values, or a value is not acceptable.
    """
    known = {option.name: option for option in OPTIONS}
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, text = (part.strip() for part in pair.partition("="))
        if name not in known and (other := peer_option(name)):
            if other.accepts(text):
                continue  # the command line says so in a note
            raise refused_option(other, name, text)
        where = f"--extra_options {name}={'...' if text.startswith('hf_') else text}" if separator else name
        if not separator or name not in known:
            raise not_understood(name, where, known, has_value=bool(separator))
        try:
            value = known[name].parse(text)
        except ValueError as error:
            raise ExportError(
                "An option's value is not accepted.",
                where=where,
                found=repr(text),
                accepted=known[name].accepted,
                fix=f"Correct the value, or leave the option out for the default: {known[name].default}.",
            ) from error
        if values.setdefault(name, value) != value:
            raise ExportError(
                "An option is given twice, with two values.",
                where=where,
                found=f"{name}={text} after {given[name]}",
                accepted="each option once",
                fix="Remove one of the two.",
            )
        given[name] = pair
    return values
