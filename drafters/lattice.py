"""The candidate lattice: for each drafted position some candidates, and a score for each step between neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import OpBuilder

from onnxkit.layers.graph import I32


@dataclass(frozen=True)
class Candidates:
    """The likeliest tokens of each drafted position.

    Attributes:
        ids: ``[slots, drafts, top k]`` int64.
        unary: ``[slots, drafts, 1, top k]`` float32, their own scores.
        previous: ``[slots, drafts, top k]`` int64, the candidates of the position before; for the first one the anchor,
            as often as there are candidates.
    """

    ids: ir.Value
    unary: ir.Value
    previous: ir.Value


def unary_scores(op: OpBuilder, logits: ir.Value, top_k: int) -> tuple[ir.Value, ir.Value]:
    """The largest of ``[rows, vocab]`` float32 logits and their ids, ``[rows, top k]`` each."""
    unary, ids = op.TopK(logits, [top_k], axis=-1, _outputs=2)
    return unary, ids


def candidates(
    op: OpBuilder, unary: ir.Value, ids: ir.Value, input_ids: ir.Value, sizes: tuple[int, int, int]
) -> Candidates:
    """Candidates of all slots. ``sizes`` are the block's rows, the drafted positions and the candidates of each."""
    block, drafts, top_k = sizes
    ids = op.Reshape(ids, [-1, drafts, top_k])
    anchors = op.Gather(op.Reshape(input_ids, [-1, block]), ir.tensor([[0] * top_k], name="anchor_columns"), axis=1)
    previous = op.Concat(anchors, op.Slice(ids, [0], [drafts - 1], [1]), axis=1) if drafts > 1 else anchors
    return Candidates(ids, op.Reshape(unary, [-1, drafts, 1, top_k]), previous)


def scored(op: OpBuilder, found: Candidates, pairs: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The lattice as the runtime reads it: int32 ids, and scores ``[slots, drafts, previous, current]``."""
    return op.Cast(found.ids, to=I32), op.Add(pairs, found.unary)
