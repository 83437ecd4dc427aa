"""What a layout gives to its layers: the values of one run of the graph, and the state that each layer carries on.

The dense layout runs ``[batch, sequence]`` of equal lengths with a growing cache, for the runtime's Generator. The
packed layout runs the tokens of several requests one after another over paged caches, for its Engine. Only the
attention, the gated delta net and the graph's inputs and outputs know which layout they are in; the residual stream
between them is ``[tokens, hidden]`` in either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import onnx_ir as ir
from onnxscript import OpBuilder

from onnxkit.layers.kv_cache import KeyValueCache
from onnxkit.layers.paged_attention import Paging


class Layout(Enum):
    """How tokens reach the graph."""

    DENSE = "dense"
    PACKED = "packed"


@dataclass(frozen=True)
class DenseRun:
    """Values that every layer of a dense graph shares.

    Attributes:
        sequence_shape: ``[batch, sequence, -1]``, int64, to bring ``[tokens, n]`` back into.
        last_position: ``[batch]`` int32, the position of the newest token.
        total_length: int32 scalar, tokens cached and new together.
        cos: ``[context, rotary / 2]``, the rotary table.
        sin: The same of sines.
    """

    sequence_shape: ir.Value
    last_position: ir.Value
    total_length: ir.Value
    cos: ir.Value
    sin: ir.Value


@dataclass(frozen=True)
class PackedRun:
    """Values that every layer of a packed graph shares.

    Attributes:
        paging: Which rows and which pages each sequence has.
        cos: ``[context, rotary / 2]``, the rotary table.
        sin: The same of sines.
        capture_count: ``[batch]`` int32, rows of each sequence whose state changes are to be captured; None if the
            graph captures none.
        capture_active: ``[1]`` int32 on the CPU, whether there are any.
        capacity: How many rows of a sequence can be captured.
    """

    paging: Paging
    cos: ir.Value
    sin: ir.Value
    capture_count: ir.Value | None
    capture_active: ir.Value | None
    capacity: int


@dataclass(frozen=True)
class DeltaState:
    """A linear-attention layer's state.

    Attributes:
        conv: The last inputs of the convolution, ``[batch, kernel - 1, channels]`` dense,
            ``[batch, channels, kernel - 1]`` packed.
        recurrent: The associative memory, float32, ``[batch, value heads, key dim, value dim]`` dense,
            ``[batch, value heads, value dim, key dim]`` packed.
        conv_value: Captured inputs of the convolution, ``[batch, capacity, channels]``; with them and the capsule the
            Engine takes the state back to the last draft that was accepted.
        recurrent_capsule: Captured changes of the memory, ``[batch, width]`` float32.
    """

    conv: ir.Value
    recurrent: ir.Value
    conv_value: ir.Value | None = None
    recurrent_capsule: ir.Value | None = None


LayerState = KeyValueCache | DeltaState


def dense_run(
    op: OpBuilder, input_ids: ir.Value, attention_mask: ir.Value, tables: tuple[ir.Value, ir.Value]
) -> DenseRun:
    """The shared values of a dense graph.

    The attention mask tells the total length by its shape alone. Its zeros are not read: the runtime sets them wherever
    a prompt holds the padding token, also as an ordinary token in the middle, and the linear layers could not leave out
    a part of one row anyway. So all rows of a batch have one length.
    """
    batch = op.Shape(input_ids, start=0, end=1)
    total = op.Shape(attention_mask, start=1, end=2)
    last = op.Cast(op.Sub(total, [1]), to=ir.DataType.INT32)
    return DenseRun(
        sequence_shape=op.Concat(op.Shape(input_ids), [-1], axis=0),
        last_position=op.Expand(last, batch),
        total_length=op.Cast(op.Squeeze(total), to=ir.DataType.INT32),
        cos=tables[0],
        sin=tables[1],
    )
