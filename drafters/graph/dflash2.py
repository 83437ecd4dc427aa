"""DFlash 2: dynamic convolutions around the sub-layers, and a selector that scores pairs of neighbouring candidates.

Row 0 of a block is the anchor and predicts nothing; row ``j`` predicts the token at its own position.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from drafters.checkpoint.config import DFlash2, DrafterConfig, LayerAttention
from drafters.graph.backbone import Cache, DraftLayer, Rows
from drafters.graph.convolution import BlockTables, GroupedConvolution
from drafters.graph.drafter import BODY, BlockDrafter, DrafterOptions, scaled_and_capped
from drafters.graph.lattice import Candidates
from onnxkit.layers.basic import Linear, Style
from onnxkit.layers.graph import F32
from onnxkit.weights.parameters import Weight


class ConvolvedLayer(DraftLayer):
    """A layer whose two sub-layers stand between convolutions."""

    def __init__(self, config: DrafterConfig, attention: LayerAttention, style: Style) -> None:
        super().__init__(config, attention, style)
        variant = config.variant
        assert isinstance(variant, DFlash2)
        sizes = config.hidden_size, config.block_size, variant.conv_kernel_size, variant.conv_group_size
        self.block_tables = BlockTables(config.block_size, variant.conv_kernel_size)
        self.attention_conv, self.mlp_conv = (GroupedConvolution(*sizes, style) for _ in range(2))

    def attend(self, op: OpBuilder, x: ir.Value, rows: Rows, cache: Cache) -> tuple[ir.Value, Cache]:
        """The attention sub-layer between its convolutions."""
        tables = self.block_tables(op)
        x, after = self.attention_conv(op, x, tables)
        y, cache = super().attend(op, x, rows, cache)
        return self.attention_conv.finish(op, y, after, tables), cache

    def feed(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """The feed-forward sub-layer between its convolutions."""
        tables = self.block_tables(op)
        x, after = self.mlp_conv(op, x, tables)
        return self.mlp_conv.finish(op, super().feed(op, x), after, tables)


class CandidateSelector(nn.Module):
    """Scores of pairs: ``<A[previous] * (P h), B[current]>``, with two codebooks and a projected hidden state."""

    def __init__(self, config: DrafterConfig, rank: int, style: Style) -> None:
        super().__init__()
        self.rank = rank
        shape = [config.vocab_size, rank]
        self.predecessor_codebook = Weight("predecessor_codebook", shape, style.dtype)
        self.successor_codebook = Weight("successor_codebook", shape, style.dtype)
        self.hidden_projection = Linear(config.hidden_size, rank, style)

    def forward(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value:
        """``[slots * drafts, hidden]`` -> float32 ``[slots, drafts, previous, current]``."""
        gate = op.Reshape(self.hidden_projection(op, hidden), [-1, drafts, 1, self.rank])
        left = op.Mul(op.Gather(self.predecessor_codebook, found.previous), gate)
        right = op.Transpose(op.Gather(self.successor_codebook, found.ids), perm=[0, 1, 3, 2])
        return op.Cast(op.MatMul(left, right), to=F32)


class DFlash2Drafter(BlockDrafter):
    """The DFlash 2 drafter."""

    def __init__(self, config: DrafterConfig, options: DrafterOptions) -> None:
        super().__init__(config, options, ConvolvedLayer)
        assert isinstance(config.variant, DFlash2)
        self.variant = config.variant
        self.candidate_selector = CandidateSelector(config, config.variant.selector_rank, BODY)

    def transformed(self, op: OpBuilder, unary: ir.Value) -> ir.Value:
        """With the multiplier and the cap that the pair scores were trained against."""
        return scaled_and_capped(op, unary, self.variant.output_multiplier, self.variant.final_logit_softcapping)

    def pairs(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value:
        """The selector's scores."""
        return self.candidate_selector(op, hidden, found, drafts)
