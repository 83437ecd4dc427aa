"""The cache of keys and values of one layer."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

# Names by layer of a graph's inputs and outputs.
PAST = {"key": "past_key_values.%d.key", "value": "past_key_values.%d.value"}
PRESENT = {"key": "present.%d.key", "value": "present.%d.value"}


@dataclass(frozen=True)
class KeyValueCache:
    """An attention layer's cache.

    Dense: ``[batch, kv heads, cached tokens, head]`` each. Paged: ``[pages, page size, kv heads, head]``.
    """

    key: ir.Value
    value: ir.Value
