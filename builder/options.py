"""What a user may ask for, as one table: read from the command line, checked before anything else happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxkit.errors import ExportError, did_you_mean

# Execution providers, and the precisions that their kernels have for these graphs.
PRECISIONS = {"cpu": ("fp32",), "cuda": ("bf16", "fp16", "fp32")}
_ALL_PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Option:
    """One ``--extra_options`` key.

    Attributes:
        name: The key.
        parse: Turns the text into a value; raises ValueError where it is none.
        accepted: What is accepted, in words.
        default: What holds when the option is not given, in words.
        help: One line of meaning.
    """

    name: str
    parse: Callable[[str], Any]
    accepted: str
    default: str
    help: str


def _whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.isascii() else None
        if value is None or value < minimum or (maximum is not None and value > maximum):
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


def _page(text: str) -> int:
    value = _whole(16)(text)
    if value & (value - 1):
        raise ValueError(text)
    return value


def _layers(text: str) -> tuple[int, ...]:
    layers = tuple(_whole(1)(part.strip()) for part in text.split(","))
    if len(set(layers)) != len(layers):
        raise ValueError(text)
    return layers


OPTIONS = (
    Option(
        "context_length",
        _whole(1),
        "a whole number from 1 to the longest context of the checkpoint",
        "the checkpoint's longest (max_position_embeddings, or what YaRN stretches it to)",
        "tokens that a sequence may have; sizes the rotary tables and search.max_length",
    ),
    Option(
        "include_hidden_states",
        _flag,
        "true or false",
        "false",
        "a further output hidden_states: the final norm's output for every token",
    ),
    Option(
        "prune_lm_head",
        _flag,
        "true or false",
        "true",
        "logits of the last token only (dense), or of the tokens that the Engine asks for (packed)",
    ),
    Option(
        "aux_hidden_state_layers",
        _layers,
        "layer numbers from 1 to the number of layers, each once, separated by commas",
        "none",
        "a further output aux_hidden_states: the residual stream entering these layers, side by side",
    ),
    Option(
        "use_paged_attention",
        _flag,
        "true or false",
        "false",
        "the packed layout, for the Engine; -p bf16 or fp16 and -e cuda only",
    ),
    Option(
        "paged_block_size",
        _page,
        "a power of two from 16, a multiple of the kernel's tile (256 for heads up to 64 wide, 128 up to 128, else 64)",
        "256",
        "packed: tokens in a page of the cache",
    ),
    Option(
        "state_update_capacity",
        _whole(0, 8),
        "a whole number from 0 to 8",
        "0",
        "packed: drafts per step that the linear layers can take back; 0 means no drafts",
    ),
    Option(
        "max_draft_tokens",
        _whole(1, 7),
        "a whole number from 1 to 7, at most state_update_capacity",
        "left to the runtime",
        "packed: drafts per step; the Engine takes no more than 7",
    ),
    Option(
        "max_batch_size",
        _whole(1, 256),
        "a whole number from 1 to 256",
        "16",
        "packed: requests that run at once",
    ),
    Option(
        "max_scheduled_tokens",
        _whole(1),
        "a whole number from 1",
        "left to the runtime",
        "packed: tokens of all requests in one step",
    ),
    Option(
        "num_blocks",
        _whole(1),
        "a whole number from 1; not together with gpu_utilization_factor",
        "left to the runtime",
        "packed: pages of the cache",
    ),
    Option(
        "gpu_utilization_factor",
        _fraction,
        "a number above 0 and at most 1; not together with num_blocks",
        "0.6, unless num_blocks is given",
        "packed: share of the GPU's memory from which the number of pages follows",
    ),
    Option(
        "paged_chunk_size",
        _whole(1),
        "a whole number from 1",
        "left to the runtime",
        "packed: tokens of a prompt in one step (search.chunk_size)",
    ),
)

# Options that mean nothing in the dense layout.
_PACKED_ONLY = tuple(option.name for option in OPTIONS if option.help.startswith("packed: "))


@dataclass(frozen=True)
class BuildOptions:
    """A whole request. The fields from ``context_length`` on are those of :data:`OPTIONS`; None means left to others.

    Attributes:
        output: The folder to write.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        provider: ``cpu`` or ``cuda``.
        input: The checkpoint's folder; or
        model: the name of its repository on the Hub.
        cache_dir: Where to keep what comes from the Hub; None for the Hub's own cache.
    """

    output: Path
    precision: str
    provider: str
    input: Path | None = None
    model: str | None = None
    cache_dir: Path | None = None
    context_length: int | None = None
    include_hidden_states: bool = False
    prune_lm_head: bool = True
    aux_hidden_state_layers: tuple[int, ...] = ()
    use_paged_attention: bool = False
    paged_block_size: int | None = None
    state_update_capacity: int | None = None
    max_draft_tokens: int | None = None
    max_batch_size: int | None = None
    max_scheduled_tokens: int | None = None
    num_blocks: int | None = None
    gpu_utilization_factor: float | None = None
    paged_chunk_size: int | None = None

    def __post_init__(self) -> None:
        if (self.input is None) == (self.model is None):
            raise ExportError(
                "The checkpoint to export is named twice." if self.input else "No checkpoint to export is named.",
                where="-i and -m",
                found=f"-i {self.input} -m {self.model}" if self.input else "neither -i nor -m",
                accepted="-i with a local folder, or -m with the name of a repository on the Hub",
                fix="Give one of the two.",
            )
        _one_of("-e", self.provider, tuple(PRECISIONS))
        _one_of("-p", self.precision, _ALL_PRECISIONS)
        if self.precision not in PRECISIONS[self.provider]:
            raise ExportError(
                "This precision does not run on this execution provider.",
                where="-p and -e",
                found=f"-p {self.precision} -e {self.provider}",
                accepted="; ".join(f"-e {p} with -p {' or '.join(PRECISIONS[p])}" for p in PRECISIONS),
                fix="Choose one of these pairs.",
            )
        if self.use_paged_attention:
            self._check_packed()
        elif given := [name for name in _PACKED_ONLY if getattr(self, name) is not None]:
            raise ExportError(
                "Options of the packed layout are given without it.",
                where=f"--extra_options {given[0]}",
                found=", ".join(given) + " without use_paged_attention=true",
                accepted="these options together with use_paged_attention=true",
                fix="Add use_paged_attention=true, or leave them out.",
            )

    def _check_packed(self) -> None:
        if self.precision == "fp32" or self.provider == "cpu":
            raise ExportError(
                "The packed layout does not run in this precision or on this provider.",
                where="--extra_options use_paged_attention=true",
                found=f"-p {self.precision} -e {self.provider}",
                accepted="-p bf16 or fp16 with -e cuda",
                fix="Choose one of these, or export the dense layout (leave use_paged_attention out).",
            )
        if self.num_blocks is not None and self.gpu_utilization_factor is not None:
            raise ExportError(
                "Two options size the same cache.",
                where="--extra_options num_blocks and gpu_utilization_factor",
                found=f"num_blocks={self.num_blocks} gpu_utilization_factor={self.gpu_utilization_factor:g}",
                accepted="one of the two",
                fix="Leave one out: num_blocks is exact, gpu_utilization_factor goes by the GPU's memory.",
            )
        drafts, capacity = self.max_draft_tokens or 0, self.state_update_capacity or 0
        if drafts > capacity:
            raise ExportError(
                "More drafts are asked for than the linear layers could take back.",
                where="--extra_options max_draft_tokens and state_update_capacity",
                found=f"max_draft_tokens={drafts} state_update_capacity={capacity}",
                accepted="at most state_update_capacity drafts",
                fix=f"Add state_update_capacity={drafts}, or ask for fewer drafts.",
            )


def parse_extra_options(pairs: Sequence[str]) -> dict[str, Any]:
    """The values of ``key=value`` texts by key.

    Raises:
        ExportError: A text has no ``=``, a key is unknown or given twice, or a value is not acceptable.
    """
    known = {option.name: option for option in OPTIONS}
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = (part.strip() for part in pair.partition("="))
        where = f"--extra_options {pair}"
        if not separator:
            raise ExportError(
                "An option has no value.",
                where=where,
                found=repr(pair),
                accepted="key=value",
                fix=f"Write {name}=VALUE."
                if name in known
                else did_you_mean(name, list(known)) or "Add = and a value.",
            )
        if name not in known:
            raise ExportError(
                "An option is not known.",
                where=where,
                found=repr(name),
                accepted=", ".join(known),
                fix=did_you_mean(name, list(known)) or "Remove it; --help lists every option.",
            )
        if name in values:
            raise ExportError(
                "An option is given twice.",
                where=where,
                found=f"{name} once more",
                accepted="each option once",
                fix="Remove one of the two.",
            )
        try:
            values[name] = known[name].parse(text)
        except ValueError as error:
            raise ExportError(
                "An option's value is not acceptable.",
                where=where,
                found=repr(text),
                accepted=known[name].accepted,
                fix=f"Correct the value, or leave the option out for the default: {known[name].default}.",
            ) from error
    return values


def _one_of(flag: str, value: str, accepted: Sequence[str]) -> None:
    if value not in accepted:
        raise ExportError(
            f"{flag} has a value that is not supported.",
            where=flag,
            found=repr(value),
            accepted=" or ".join(accepted),
            fix=did_you_mean(value, accepted) or f"Choose one of these for {flag}.",
        )
