"""DSpark: a Markov head that scores each candidate by the token before it.

Every row of a block predicts the token after its own position, the anchor's row included; some are trained as DFlash 2
is, whose anchor's row predicts nothing, and row ``j`` the token at its own position. Where the published head adds its
bias to the whole vocabulary, a lattice can hold only the candidates that the row itself ranks highest.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from drafters.checkpoint.config import DrafterConfig, DSpark
from drafters.graph.backbone import DraftLayer
from drafters.graph.drafter import BODY, BlockDrafter
from drafters.graph.graph_io import DrafterOptions
from drafters.graph.lattice import Candidates, pair_products
from onnxkit.layers.graph import F32, cast
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Embedding, JointLinear


class Gate(nn.Module):
    """``sigmoid(W [h; e] + b)`` in float32, where ``W h`` is made once for all candidates of a row."""

    def __init__(self, hidden_size: int, rank: int, precision: Precision) -> None:
        super().__init__()
        self.rank = rank
        self.joint = JointLinear((hidden_size, rank), rank, precision.activations, F32)

    def forward(self, op: OpBuilder, hidden: ir.Value, embedded: ir.Value, drafts: int) -> ir.Value:
        """``[slots * drafts, hidden]`` and ``[slots, drafts, top k, rank]`` -> ``[slots, drafts, top k, rank]``."""
        once, each = self.joint(op, hidden, embedded)
        return op.Sigmoid(op.Add(each, op.Reshape(once, [-1, drafts, 1, self.rank])))


class MarkovHead(nn.Module):
    """Scores of pairs in float32: ``<W1[previous], W2[current]>``; a gate, if there is one, acts on the left."""

    def __init__(self, config: DrafterConfig, variant: DSpark, precision: Precision) -> None:
        super().__init__()
        rank, self.dtype = variant.markov_rank, precision.activations
        self.markov_w1 = Embedding(config.vocab_size, rank, precision)  # by the target's ids
        self.markov_w2 = Embedding(config.draft_vocab_size or config.vocab_size, rank, precision)  # by rows of the head
        self.gate_proj = Gate(config.hidden_size, rank, precision) if variant.gated else None

    def forward(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value:
        """``[slots * drafts, hidden]`` -> ``[slots, drafts, previous, current]``."""
        left = self._float32(op, self.markov_w1(op, found.previous))
        if self.gate_proj is not None:
            left = op.Mul(left, self.gate_proj(op, hidden, left, drafts))
        return pair_products(op, left, self._float32(op, self.markov_w2(op, found.rows)))

    def _float32(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return cast(op, x, self.dtype, F32)


class DSparkDrafter(BlockDrafter):
    """The DSpark drafter."""

    def __init__(self, config: DrafterConfig, options: DrafterOptions) -> None:
        super().__init__(config, options, DraftLayer)
        assert isinstance(config.variant, DSpark)
        self.markov_head = MarkovHead(config, config.variant, BODY) if config.variant.markov_rank else None

    def pairs(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value | None:
        """The Markov head's scores. The candidates' own stay the head's, whatever scale the target gives its logits."""
        return None if self.markov_head is None else self.markov_head(op, hidden, found, drafts)
