"""DFlash 2's grouped dynamic convolution: around each sub-layer, rows of a block are mixed with those before them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from onnxkit.layers.graph import BF16
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Linear
from onnxkit.weights.parameters import Rows, Source, Weight


class BlockTables(nn.Module):
    """Constants of a block that all its convolutions read.

    Attributes:
        tap_rows: ``[block, taps]``, the row that each tap of each row reads.
        tap_mask: ``[1, block, 2 * taps, 1, 1]``, 0 where that row would lie before the block's start, for both sides.
    """

    def __init__(self, block_size: int, taps: int) -> None:
        super().__init__()
        row, tap = np.arange(block_size)[:, None], np.arange(taps)[None]
        mask = np.tile(row >= tap, (1, 2)).reshape(1, block_size, 2 * taps, 1, 1).astype(ml_dtypes.bfloat16)
        self.tap_rows = nn.Parameter([block_size, taps], data=ir.tensor(np.maximum(row - tap, 0)))
        self.tap_mask = nn.Parameter(mask.shape, data=ir.tensor(mask, dtype=BF16))

    def forward(self, op: OpBuilder) -> tuple[ir.Value, ir.Value]:
        """The two tables."""
        return self.tap_rows, self.tap_mask


class GroupedConvolution(nn.Module):
    """``y[t] = sum over taps of (base[tap] + delta[t, tap]) * x[t - tap]``, within a block.

    ``base`` is learnt per channel, ``delta`` is predicted per row and group of channels from the sub-layer's normed
    input, for both sides at once: one convolution makes the sub-layer's input, the other is applied to its output.
    """

    def __init__(self, hidden_size: int, block_size: int, taps: int, group: int, precision: Precision) -> None:
        super().__init__()
        self.hidden, self.block, self.taps, self.groups, self.group = (
            hidden_size,
            block_size,
            taps,
            hidden_size // group,
            group,
        )
        shape = [2 * taps, self.groups, group]
        stored = Source((Rows("base_kernel", 2),), (taps, hidden_size))
        self.base_kernel = Weight("base_kernel", shape, precision.activations, stored)
        self.kernel_projection = Linear(hidden_size, 2 * taps * self.groups, precision)

    def forward(self, op: OpBuilder, x: ir.Value, tables: tuple[ir.Value, ir.Value]) -> tuple[ir.Value, ir.Value]:
        """The sub-layer's input ``[block rows, hidden]``, and the coefficients that :meth:`finish` needs."""
        delta = op.Reshape(self.kernel_projection(op, x), [-1, self.block, 2 * self.taps, self.groups, 1])
        coefficients = op.Mul(op.Add(delta, self.base_kernel), tables[1])
        before, after = op.Split(coefficients, num_outputs=2, axis=2, _outputs=2)
        return self.apply(op, x, before, tables), after

    def finish(self, op: OpBuilder, y: ir.Value, after: ir.Value, tables: tuple[ir.Value, ir.Value]) -> ir.Value:
        """The convolution of the sub-layer's output, ``[block rows, hidden]``."""
        return self.apply(op, y, after, tables)

    def apply(self, op: OpBuilder, x: ir.Value, coefficients: ir.Value, tables: tuple[ir.Value, ir.Value]) -> ir.Value:
        """The sum over taps; ``coefficients`` is ``[slots, block, taps, groups, group]``."""
        blocks = op.Reshape(x, [-1, self.block, self.groups, self.group])
        tapped = op.Gather(blocks, tables[0], axis=1)
        return op.Reshape(op.ReduceSum(op.Mul(tapped, coefficients), [2], keepdims=0), [-1, self.hidden])
