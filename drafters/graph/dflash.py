"""Plain DFlash: the backbone alone. It runs as a DFlash 2 drafter whose pairs score nothing.

Row 0 of a block is the anchor and predicts nothing; row ``j`` predicts the token at its own position, whatever the
others predict. So the lattice's best path is each row's own best token, as published.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder

from drafters.checkpoint.config import DFlash, DrafterConfig
from drafters.graph.backbone import DraftLayer
from drafters.graph.drafter import BlockDrafter, scaled_and_capped
from drafters.graph.graph_io import DrafterOptions
from drafters.graph.lattice import Candidates


class DFlashDrafter(BlockDrafter):
    """The plain DFlash drafter."""

    def __init__(self, config: DrafterConfig, options: DrafterOptions) -> None:
        super().__init__(config, options, DraftLayer)
        assert isinstance(config.variant, DFlash)
        self.variant = config.variant

    def transformed(self, op: OpBuilder, unary: ir.Value) -> ir.Value:
        """With the multiplier and the cap, which sampling sees."""
        return scaled_and_capped(op, unary, self.variant.output_multiplier, self.variant.final_logit_softcapping)

    def pairs(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> None:
        """Nothing."""
