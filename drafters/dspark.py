"""DSpark: a Markov head that scores each candidate by the token before it.

Every row of a block predicts the token after its own position, the anchor's row, too. Where the published head adds its
bias to the whole vocabulary, a lattice can hold only the candidates that the row itself ranks highest.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from drafters.backbone import DraftLayer
from drafters.config import DrafterConfig, DSpark
from drafters.drafter import BODY, BlockDrafter, DrafterOptions
from drafters.lattice import Candidates, candidates, scored, unary_scores
from onnxkit.layers.basic import Embedding, Style
from onnxkit.layers.graph import F32
from onnxkit.weights.parameters import Weight


class Gate(nn.Module):
    """``sigmoid(W [h; e] + b)`` in float32. ``W`` is taken apart by columns, so that ``W h`` is made once a row."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.hidden, self.rank = hidden_size, rank
        self.weight = Weight("weight", [rank, hidden_size + rank], F32)
        self.bias = Weight("bias", [rank], F32)

    def forward(self, op: OpBuilder, hidden: ir.Value, embedded: ir.Value, drafts: int) -> ir.Value:
        """``[slots * drafts, hidden]`` and ``[slots, drafts, top k, rank]`` -> ``[slots, drafts, top k, rank]``."""
        for_hidden, for_embedded = op.Split(self.weight, [self.hidden, self.rank], axis=1, _outputs=2)
        once = op.Gemm(op.Cast(hidden, to=F32), for_hidden, self.bias, transB=1)
        each = op.MatMul(embedded, op.Transpose(for_embedded, perm=[1, 0]))
        return op.Sigmoid(op.Add(each, op.Reshape(once, [-1, drafts, 1, self.rank])))


class MarkovHead(nn.Module):
    """Scores of pairs in float32: ``<W1[previous], W2[current]>``; a gate, where there is one, acts on the left."""

    def __init__(self, config: DrafterConfig, variant: DSpark, style: Style) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = (Embedding(config.vocab_size, variant.markov_rank, style) for _ in range(2))
        self.gate_proj = Gate(config.hidden_size, variant.markov_rank) if variant.gated else None

    def forward(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value:
        """``[slots * drafts, hidden]`` -> ``[slots, drafts, previous, current]``."""
        left = op.Cast(self.markov_w1(op, found.previous), to=F32)
        if self.gate_proj is not None:
            left = op.Mul(left, self.gate_proj(op, hidden, left, drafts))
        right = op.Cast(self.markov_w2(op, found.ids), to=F32)
        return op.MatMul(left, op.Transpose(right, perm=[0, 1, 3, 2]))


class DSparkDrafter(BlockDrafter):
    """The DSpark drafter."""

    def __init__(self, config: DrafterConfig, options: DrafterOptions) -> None:
        super().__init__(config, options, DraftLayer)
        assert isinstance(config.variant, DSpark)
        self.markov_head = MarkovHead(config, config.variant, BODY)

    def lattice(self, op: OpBuilder, hidden: ir.Value, input_ids: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Candidates and scores of every row. The logits are the head's own, whatever scale the target gives them."""
        config = self.config
        unary, ids = unary_scores(op, self.logits(op, hidden), config.top_k)
        found = candidates(op, unary, ids, input_ids, (config.block_size, config.block_size, config.top_k))
        return scored(op, found, self.markov_head(op, hidden, found, config.block_size))
