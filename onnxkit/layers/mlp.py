"""The feed-forward part of a layer."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.layers.gating import Gated
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Linear, StackedLinear, whole


class MLP(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))`` (Shazeer, GLU Variants Improve Transformer, 2020)."""

    def __init__(self, hidden_size: int, intermediate_size: int, precision: Precision) -> None:
        super().__init__()
        parts = [whole("gate_proj", intermediate_size), whole("up_proj", intermediate_size)]
        self.gate_up = StackedLinear(hidden_size, parts, precision)
        self.gated = Gated(intermediate_size, precision)
        self.down_proj = Linear(intermediate_size, hidden_size, precision)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """``[tokens, hidden] -> [tokens, hidden]``."""
        gate, up = self.gate_up(op, x)
        return self.down_proj(op, self.gated(op, up, gate))
