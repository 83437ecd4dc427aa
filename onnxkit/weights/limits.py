"""What a configuration may claim: no more than the weights beside it can hold.

Building a graph makes lists as long as such a count. Before that, each count is compared with the headers, so that a
nine-digit number costs no more than a message.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxkit.json_object import Limit
from onnxkit.weights.safetensors_file import StoredTensor

# Positions: the rotary tables have a row for each.
LONGEST_CONTEXT = 1 << 24

# By key, far beyond any existing model; what a stranger's headers claim is not a limit by itself.
_CAPS = {
    "num_hidden_layers": 1024,
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
    "draft_vocab_size": 1 << 22,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "head_dim": 4096,
    "linear_num_key_heads": 1024,
    "linear_num_value_heads": 1024,
    "linear_key_head_dim": 4096,
    "linear_value_head_dim": 4096,
    "linear_conv_kernel_dim": 256,
    "block_size": 1024,
    "conv_kernel_size": 256,
    "conv_group_size": 1 << 16,
    "selector_rank": 1 << 16,
    "markov_rank": 1 << 16,
    "max_position_embeddings": LONGEST_CONTEXT,
    "original_max_position_embeddings": LONGEST_CONTEXT,
}

# Not known from a drafter's own tensors: it reads the target's tables, a reduced head has fewer rows, and blocks
# and positions are stored nowhere.
_NOT_STORED = (
    "vocab_size",
    "draft_vocab_size",
    "block_size",
    "max_position_embeddings",
    "original_max_position_embeddings",
)


def limits(tensors: Iterable[StoredTensor]) -> dict[str, Limit]:
    """The largest value that each key may have, given these tensors."""
    tensors = list(tensors)
    widest = max((size for tensor in tensors if tensor.length for size in tensor.shape), default=0)
    found = {}
    for key, cap in _CAPS.items():
        if key == "num_hidden_layers":
            bound = Limit(len(tensors), "the number of stored tensors")
        elif key in _NOT_STORED:
            bound = Limit(cap, "")
        else:
            bound = Limit(widest, "the longest side of a stored tensor")
        found[key] = bound if 0 < bound.most < cap else Limit(cap, "more than any model has")
    return found
