"""DFlash 2: dynamic convolutions around the sub-layers, and a selector that scores pairs of neighbouring candidates.

Row 0 of a block is the anchor and predicts nothing; row ``j`` predicts the token at its own position.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from drafters.checkpoint.config import DFlash2, DrafterConfig, LayerAttention
from drafters.graph.backbone import DraftLayer, DraftRun
from drafters.graph.convolution import BlockTables, GroupedConvolution
from drafters.graph.drafter import BODY, BlockDrafter, scaled_and_capped
from drafters.graph.graph_io import DrafterOptions
from drafters.graph.lattice import Candidates, pair_products
from onnxkit.layers.graph import F32
from onnxkit.layers.kv_cache import KeyValueCache
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Linear, Lookup, declared_by


class ConvolvedLayer(DraftLayer):
    """A layer whose two sub-layers stand between convolutions."""

    def __init__(self, config: DrafterConfig, attention: LayerAttention, precision: Precision) -> None:
        super().__init__(config, attention, precision)
        variant = config.variant
        assert isinstance(variant, DFlash2)
        sizes = config.hidden_size, config.block_size, variant.conv_kernel_size, variant.conv_group_size
        self.block_tables = BlockTables(config.block_size, variant.conv_kernel_size)
        self.attention_conv, self.mlp_conv = (GroupedConvolution(*sizes, precision) for _ in range(2))

    def attend(self, op: OpBuilder, x: ir.Value, run: DraftRun, cache: KeyValueCache) -> tuple[ir.Value, KeyValueCache]:
        """The attention sub-layer between its convolutions."""
        tables = self.block_tables(op)
        x, after = self.attention_conv(op, x, tables)
        y, cache = super().attend(op, x, run, cache)
        return self.attention_conv.finish(op, y, after, tables), cache

    def feed(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """The feed-forward sub-layer between its convolutions."""
        tables = self.block_tables(op)
        x, after = self.mlp_conv(op, x, tables)
        return self.mlp_conv.finish(op, super().feed(op, x), after, tables)


class CandidateSelector(nn.Module):
    """Scores of pairs: ``<A[previous] * (P h), B[current]>``, with two codebooks and a projected hidden state."""

    def __init__(self, config: DrafterConfig, rank: int, precision: Precision) -> None:
        super().__init__()
        self.rank = rank
        self.predecessors, self.successors = (
            declared_by(self, Lookup(precision.weights.matrix(name, (config.vocab_size, rank)), precision))
            for name in ("predecessor_codebook", "successor_codebook")
        )
        self.hidden_projection = Linear(config.hidden_size, rank, precision)

    def forward(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value:
        """``[slots * drafts, hidden]`` -> float32 ``[slots, drafts, previous, current]``."""
        gate = op.Reshape(self.hidden_projection(op, hidden), [-1, drafts, 1, self.rank])
        left = op.Mul(self.predecessors(op, found.previous), gate)
        return op.Cast(pair_products(op, left, self.successors(op, found.ids)), to=F32)


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
