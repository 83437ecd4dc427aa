"""A drafter's graph from outside: what it takes from the target, and its inputs and outputs by name and type.

Those of paged attention are named in :mod:`onnxkit.layers.paged_attention`, those of the cache in
:mod:`onnxkit.layers.kv_cache`.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import GraphBuilder

from drafters.checkpoint.config import DrafterConfig
from onnxkit.layers.graph import BF16, I32, I64, Type
from onnxkit.layers.kv_cache import PAST, KeyValueCache
from onnxkit.layers.paged_attention import paging_types
from onnxkit.layers.precision import Precision

INPUT_IDS, AUX_HIDDEN_STATES = "input_ids", "aux_hidden_states"
QKV_ROW_MAP, BLOCK_ROW_INDEX = "qkv_row_map", "block_row_index"
CANDIDATE_IDS, SCORES = "draft_candidate_ids", "draft_scores"


@dataclass(frozen=True)
class DrafterOptions:
    """What a drafter's graph takes from the target that it drafts for.

    Attributes:
        target: The target's precision: the element type of its hidden states, the format of its embedding and head.
        context_length: Positions that a sequence may have.
        page_size: Tokens in a page of the cache, which both graphs share.
        embedding: The name of the target's embedding in its graph.
        head: The name of its LM head; the embedding's where they are one table.
    """

    target: Precision
    context_length: int
    page_size: int
    embedding: str
    head: str


def cache_type(config: DrafterConfig, options: DrafterOptions) -> Type:
    """Element type and shape of a layer's keys, and of its values."""
    return BF16, ["num_blocks", options.page_size, config.num_key_value_heads, config.head_dim]


def declare_inputs(
    builder: GraphBuilder, config: DrafterConfig, options: DrafterOptions
) -> tuple[dict[str, ir.Value], list[KeyValueCache]]:
    """Declare the graph's inputs. Slots, whose rows are ``block_rows``, are not the requests: either may be more."""
    kinds: dict[str, Type] = {
        AUX_HIDDEN_STATES: (options.target.activations, ["context_rows", config.hidden_size * len(config.taps)]),
        INPUT_IDS: (I64, ["block_rows"]),
        QKV_ROW_MAP: (I32, ["rows"]),
        BLOCK_ROW_INDEX: (I32, ["block_rows"]),
        **paging_types("requests"),
    }
    inputs = {name: builder.input(name, *kind) for name, kind in kinds.items()}
    cache = cache_type(config, options)
    caches = [
        KeyValueCache(**{part: builder.input(name % layer, *cache) for part, name in PAST.items()})
        for layer in range(len(config.layers))
    ]
    return inputs, caches
