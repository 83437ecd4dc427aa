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
        ids: ``[slots, drafts, top k]`` int64, the target's ids.
        rows: The same as rows of the head; the ids themselves unless the vocabulary is a part of the target's.
        unary: ``[slots, drafts, 1, top k]`` float32, their own scores.
        previous: ``[slots, drafts, top k]`` int64, the candidates of the position before; for the first one the anchor,
            as often as there are candidates.
    """

    ids: ir.Value
    rows: ir.Value
    unary: ir.Value
    previous: ir.Value


def unary_scores(op: OpBuilder, logits: ir.Value, top_k: int) -> tuple[ir.Value, ir.Value]:
    """The largest of ``[rows, vocab]`` float32 logits and their ids, ``[rows, top k]`` each."""
    unary, ids = op.TopK(logits, [top_k], axis=-1, _outputs=2)
    return unary, ids


def candidates(
    op: OpBuilder,
    unary: ir.Value,
    rows: ir.Value,
    input_ids: ir.Value,
    sizes: tuple[int, int, int],
    offsets: ir.Value | None = None,
) -> Candidates:
    """Candidates of all slots.

    Args:
        op: The builder.
        unary: ``[rows, top k]`` float32, their own scores.
        rows: ``[rows, top k]`` int64, the head's rows that they are.
        input_ids: The blocks' tokens.
        sizes: The block's rows, the drafted positions and the candidates of each.
        offsets: ``[head rows]`` int64, what to add to a row of the head for the target's id; None for nothing.
    """
    block, drafts, top_k = sizes
    rows = op.Reshape(rows, [-1, drafts, top_k])
    ids = rows if offsets is None else op.Add(rows, op.Gather(offsets, rows))
    # A block's tokens, the anchor first, and behind them its candidates: each position takes what stands before it.
    known = op.Concat(op.Reshape(input_ids, [-1, block]), op.Reshape(ids, [-1, drafts * top_k]), axis=1)
    columns = [[0] * top_k, *([block + position * top_k + k for k in range(top_k)] for position in range(drafts - 1))]
    previous = op.Gather(known, ir.tensor(columns, name="previous_columns"), axis=1)
    return Candidates(ids, rows, op.Reshape(unary, [-1, drafts, 1, top_k]), previous)


def pair_products(op: OpBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Inner products of every previous candidate's vector and every current one's.

    ``[slots, drafts, top k, rank]`` twice -> ``[slots, drafts, previous, current]``.
    """
    return op.MatMul(left, op.Transpose(right, perm=[0, 1, 3, 2]))


def scored(
    op: OpBuilder, found: Candidates, pairs: ir.Value | None, sizes: tuple[int, int, int]
) -> tuple[ir.Value, ir.Value]:
    """The lattice as the runtime reads it: int32 ids, and scores ``[slots, drafts, previous, current]``."""
    ids = op.Cast(found.ids, to=I32)
    if pairs is None:  # whatever came before: each candidate's own score, for every previous one
        return ids, op.Expand(found.unary, [1, 1, sizes[2], 1])
    return ids, op.Add(pairs, found.unary)
