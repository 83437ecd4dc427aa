"""The settings of a build that the request leaves open; they follow from the checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from builder.drafter import Drafter, misfit
from builder.model_config import ModelConfig
from builder.options import BuildOptions, check_step
from drafters.checkpoint.conventions import RAW
from drafters.checkpoint.kinds import RuntimeKind
from genai_config import runtime
from onnxkit.errors import ExportError
from onnxkit.layers.precision import Precision

DTYPE_OF = {"fp32": ir.DataType.FLOAT, "fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}

# How much of the GPU a drafter's cache may take before fewer requests at once are chosen. Bytes.
POOL_LIMIT = 8_000_000_000

# The tiles of the flash attention kernel by the widest head that they are for.
_TILES, _SMALLEST_TILE = ((64, 256), (128, 128)), 64


@dataclass(frozen=True)
class Resolved:
    """The settings of a build. None means that the runtime's or the configuration's default holds.

    Attributes:
        precision: How the target computes.
        packed: Whether the layout is the Engine's.
        context_length: Positions that a sequence may have.
        page_size: Tokens in a page of the cache, which all graphs share.
        taps: The layers whose entering stream the target puts out.
        last_tap: What a tap on the last layer is, ``raw`` or ``normed``; None without one.
        max_draft_tokens: Drafts in a step.
        state_update_capacity: Drafts whose state changes can be taken back.
        max_batch_size: Requests at once.
    """

    precision: Precision
    packed: bool
    context_length: int
    page_size: int
    taps: tuple[int, ...]
    last_tap: str | None
    max_draft_tokens: int | None
    state_update_capacity: int | None
    max_batch_size: int | None

    def recorded(self) -> dict[str, Any]:
        """What an export records of it in place of the request, by the options' names."""
        return {
            **({"use_paged_attention": True} if self.packed else {}),
            "aux_hidden_state_layers": self.taps,
            "last_tap": self.last_tap,
            "max_draft_tokens": self.max_draft_tokens,
            "state_update_capacity": self.state_update_capacity,
            "max_batch_size": self.max_batch_size,
        }


def resolve(options: BuildOptions, target: ModelConfig, drafter: Drafter | None) -> Resolved:
    """The settings of a build of these checkpoints.

    Raises:
        ExportError: An option asks for what the checkpoints cannot do, or contradicts what follows from them.
    """
    context_length, page_size = _context_length(options, target), _page_size(options, drafter)
    if drafter is not None:
        return beside_drafter(options, drafter, context_length, page_size)
    return Resolved(
        precision=Precision.dense(DTYPE_OF[options.precision]),
        packed=options.packed,
        context_length=context_length,
        page_size=page_size,
        taps=options.aux_hidden_state_layers,
        last_tap=_last_tap(options, target),
        max_draft_tokens=options.max_draft_tokens,
        state_update_capacity=options.state_update_capacity,
        max_batch_size=options.max_batch_size,
    )


def beside_drafter(options: BuildOptions, drafter: Drafter, context_length: int, page_size: int) -> Resolved:
    """The settings beside a drafter: taps, drafts, state updates and the number of requests follow from it.

    Raises:
        ExportError: A given option contradicts them.
    """
    config, given = drafter.config, options.aux_hidden_state_layers
    if given and given != config.taps:
        raise ExportError(
            "The taps are not the ones that the drafter reads.",
            where=f"--extra_options aux_hidden_state_layers={','.join(map(str, given))}",
            found=", ".join(map(str, given)),
            accepted=f"{', '.join(map(str, config.taps))}, in this order: the outputs of its target_layer_ids "
            f"{', '.join(map(str, config.target_layer_ids))} enter the layers after them",
            fix="Leave aux_hidden_state_layers out; it follows from the drafter.",
        )
    if options.prefix_caching and config.kind == RuntimeKind.DSPARK:
        raise misfit("prefix_caching", "true", "false, or nothing: the Engine has no prefix caching with DSpark")
    if options.last_tap and drafter.last_tap is None:
        raise misfit("last_tap", options.last_tap, "nothing: the drafter does not read the target's last layer")
    drafts = options.max_draft_tokens or min(config.num_draft_tokens, runtime.ENGINE_DRAFTS)
    if drafts > config.num_draft_tokens:
        raise misfit("max_draft_tokens", drafts, f"1 to {config.num_draft_tokens}, the drafts of a block")
    capacity = drafts if options.state_update_capacity is None else options.state_update_capacity
    if capacity < drafts:
        raise misfit("state_update_capacity", capacity, f"{drafts} to 8: max_draft_tokens is {drafts}")
    check_step(options.max_scheduled_tokens, drafts)
    return Resolved(
        precision=Precision.dense(DTYPE_OF[options.precision]),
        packed=True,
        context_length=context_length,
        page_size=page_size,
        taps=config.taps,
        last_tap=drafter.last_tap,
        max_draft_tokens=drafts,
        state_update_capacity=capacity,
        max_batch_size=options.max_batch_size or _batch_size(drafter, context_length, page_size),
    )


def _batch_size(drafter: Drafter, context_length: int, page_size: int) -> int:
    """The number of requests that the drafter's cache has room for, at most the runtime's default."""
    pages = drafter.ring_pages(context_length, page_size)
    if pages is None:
        return runtime.DEFAULT_BATCH
    request = pages * page_size * drafter.token_bytes()
    return max(1, min(runtime.DEFAULT_BATCH, POOL_LIMIT // request))


def _last_tap(options: BuildOptions, target: ModelConfig) -> str | None:
    """What a tap on the last layer is. A tap without a drafter is the stream before the norm by default.

    A tap is the stream entering a layer; the number of layers stands for the stream that leaves the last one.
    """
    taps, count = options.aux_hidden_state_layers, target.num_hidden_layers
    if taps and max(taps) > count:
        raise ExportError(
            "A tap is beyond the last layer.",
            where=f"--extra_options aux_hidden_state_layers={','.join(map(str, taps))}",
            found=max(taps),
            accepted=f"1 to {count}: the stream entering that layer, {count} for what leaves the last one",
            fix="Name layers that the checkpoint has.",
        )
    if count in taps:
        return options.last_tap or RAW
    if options.last_tap:
        raise ExportError(
            "An option names a tap that does not exist.",
            where=f"--extra_options last_tap={options.last_tap}",
            found=f"taps {', '.join(map(str, taps)) or 'on no layer'}",
            accepted=f"last_tap beside a tap on the last layer, {count}",
            fix="Leave last_tap out.",
        )
    return None


def _page_size(options: BuildOptions, drafter: Drafter | None) -> int:
    """Tokens in a page, which both graphs share.

    Attention sinks run on the flash kernel alone, which reads whole tiles, whose size depends on the head's width.
    Everything else runs with pages of any size.
    """
    size = options.paged_block_size or runtime.DEFAULT_PAGE
    if drafter is None or not drafter.config.attention_sinks:
        return size
    width = drafter.config.head_dim
    tile = next((tile for most, tile in _TILES if width <= most), _SMALLEST_TILE)
    if size % tile:
        raise ExportError(
            "The page is smaller than the tile of the attention kernel that takes sinks.",
            where=f"--extra_options paged_block_size={size}",
            found=f"{size}, with a drafter whose attention has sinks",
            accepted=f"a power of two from {tile} (the drafter's heads are {width} wide)",
            fix="Ask for larger pages, or leave the option out.",
        )
    return size


def _context_length(options: BuildOptions, config: ModelConfig) -> int:
    limit = config.longest_context
    if options.context_length is not None and options.context_length > limit:
        raise ExportError(
            "The context is longer than the checkpoint's.",
            where=f"--extra_options context_length={options.context_length}",
            found=options.context_length,
            accepted=f"1 to {limit} (max_position_embeddings in config.json, or what YaRN stretches it to)",
            fix="Ask for less, or leave the option out.",
        )
    return options.context_length or limit
