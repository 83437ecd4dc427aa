"""Attention over a paged cache, and the inputs that say which row, which page and which request belong together.

All graphs of the packed layout have these inputs, under these names. The runtime builds them anew for every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from onnxkit.layers.graph import CONTRIB, I32, Type
from onnxkit.layers.kv_cache import KeyValueCache

CUMULATIVE, PAST_LENGTHS, BLOCK_TABLE = "cumulative_sequence_lengths", "past_sequence_lengths", "block_table"
METADATA = "attention_metadata"


def paging_types(requests: str) -> dict[str, Type]:
    """Element types and shapes of the paging inputs, by name; ``requests`` names the batch size."""
    return {
        CUMULATIVE: (I32, [f"{requests} + 1"]),
        PAST_LENGTHS: (I32, [requests]),
        BLOCK_TABLE: (I32, [requests, "max_num_blocks"]),
        METADATA: (I32, [3]),
    }


@dataclass(frozen=True)
class Paging:
    """The paging inputs of one run, whose rows are packed one after another, request by request.

    Attributes:
        cumulative_lengths: ``[requests + 1]`` int32, where each request's new rows begin, and their total.
        past_lengths: ``[requests]`` int32, rows cached before this run: the position of each request's first new row.
        block_table: ``[requests, pages]`` int32, the pages of each request's cache.
        attention_metadata: ``[3]`` int32 on the CPU, bounds on the lengths.
    """

    cumulative_lengths: ir.Value
    past_lengths: ir.Value
    block_table: ir.Value
    attention_metadata: ir.Value

    @classmethod
    def of(cls, inputs: Mapping[str, ir.Value]) -> Paging:
        """The paging inputs among a graph's inputs."""
        return cls(inputs[CUMULATIVE], inputs[PAST_LENGTHS], inputs[BLOCK_TABLE], inputs[METADATA])


@dataclass(frozen=True)
class Heads:
    """How attention is divided into heads, and whose keys a query sees.

    Attributes:
        count: The number of query heads.
        kv_count: The number of key and value heads; ``count`` is a multiple of it.
        causal: Whether a row sees no later rows; None leaves it to the operator, whose attention is causal.
        window: How many of the most recent positions a row sees, including its own; None for all.
    """

    count: int
    kv_count: int
    causal: bool | None = None
    window: int | None = None


def paged_attention(
    op: OpBuilder,
    query: ir.Value,
    key: ir.Value | None,
    value: ir.Value | None,
    cache: KeyValueCache,
    paging: Paging,
    heads: Heads,
    *,
    rotary: tuple[ir.Value, ir.Value],
    norms: tuple[ir.Value, ir.Value],
    epsilon: float,
    sinks: ir.Value | None = None,
) -> tuple[ir.Value, KeyValueCache]:
    """Normalize and rotate queries and keys, write keys and values to their pages, and attend.

    Args:
        op: The builder.
        query: ``[rows, heads * dim]``; without ``key`` and ``value``, queries, keys and values side by side.
        key: ``[rows, kv heads * dim]``.
        value: The same.
        cache: The layer's pages.
        paging: The run's paging inputs.
        heads: How attention is divided into heads, and what a query sees.
        rotary: The tables of cosines and sines, ``[positions, rotated / 2]`` each.
        norms: The weights of the RMS norms of queries and keys, ``[dim]`` each.
        epsilon: The norms' epsilon.
        sinks: ``[heads]``, one logit per head that takes part in its softmax but has no value.

    Returns:
        ``[rows, heads * dim]``, and the cache, whose pages are filled in place.
    """
    attributes: dict[str, Any] = {"num_heads": heads.count, "kv_num_heads": heads.kv_count}
    if heads.causal is not None:
        attributes["is_causal"] = int(heads.causal)
    attributes |= {"do_rotary": 1, "qk_norm_epsilon": epsilon}
    if heads.window is not None:
        attributes["local_window_size"] = heads.window
    states = [query, key, value, cache.key, cache.value]
    run = [paging.cumulative_lengths, paging.past_lengths, paging.block_table]
    no_slots, no_scales = [None], [None, None]  # the pages follow from the block table; the cache is not quantized
    inputs = [*states, *run, *rotary, *no_slots, sinks, *norms, *no_scales, paging.attention_metadata]
    y, keys, values = op.PagedAttention(*inputs, **attributes, _outputs=3, **CONTRIB)
    return y, KeyValueCache(keys, values)
