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
        source_rows: ``[block, kernel]``, the row that each position of the kernel reads, for each row.
        inside: ``[1, block, 2 * kernel, 1, 1]``, 0 where that row would lie before the block's start, for both sides.
    """

    def __init__(self, block_size: int, kernel_size: int) -> None:
        super().__init__()
        row, offset = np.arange(block_size)[:, None], np.arange(kernel_size)[None]
        rows = np.maximum(row - offset, 0)
        inside = np.tile(row >= offset, (1, 2)).reshape(1, block_size, 2 * kernel_size, 1, 1)
        mask = ir.tensor(inside.astype(ml_dtypes.bfloat16), dtype=BF16)
        # Their names in the graph stay what they have been, so that exports stay the same byte for byte.
        self.source_rows = nn.Parameter(rows.shape, name="tap_rows", data=ir.tensor(rows))
        self.inside = nn.Parameter(inside.shape, name="tap_mask", data=mask)

    def forward(self, op: OpBuilder) -> tuple[ir.Value, ir.Value]:
        """The two tables."""
        return self.source_rows, self.inside


class GroupedConvolution(nn.Module):
    """``y[t] = sum over k of (base[k] + delta[t, k]) * x[t - k]``, within a block; ``k`` is a position of the kernel.

    ``base`` is learnt per channel, ``delta`` is predicted per row and group of channels from the sub-layer's normed
    input, for both sides at once: one convolution makes the sub-layer's input, the other is applied to its output.
    """

    def __init__(self, hidden_size: int, block_size: int, kernel_size: int, group: int, precision: Precision) -> None:
        super().__init__()
        self.hidden, self.block, self.kernel = hidden_size, block_size, kernel_size
        self.groups, self.group = hidden_size // group, group
        shape, stored = [2 * kernel_size, self.groups, group], (kernel_size, hidden_size)
        self.base_kernel = Weight(
            "base_kernel", shape, precision.activations, Source((Rows("base_kernel", 2),), stored)
        )
        self.kernel_projection = Linear(hidden_size, 2 * kernel_size * self.groups, precision)

    def forward(self, op: OpBuilder, x: ir.Value, tables: tuple[ir.Value, ir.Value]) -> tuple[ir.Value, ir.Value]:
        """The sub-layer's input ``[block rows, hidden]``, and the coefficients that :meth:`finish` needs."""
        delta = op.Reshape(self.kernel_projection(op, x), [-1, self.block, 2 * self.kernel, self.groups, 1])
        coefficients = op.Mul(op.Add(delta, self.base_kernel), tables[1])
        before, after = op.Split(coefficients, num_outputs=2, axis=2, _outputs=2)
        return self.apply(op, x, before, tables), after

    def finish(self, op: OpBuilder, y: ir.Value, after: ir.Value, tables: tuple[ir.Value, ir.Value]) -> ir.Value:
        """The convolution of the sub-layer's output, ``[block rows, hidden]``."""
        return self.apply(op, y, after, tables)

    def apply(self, op: OpBuilder, x: ir.Value, coefficients: ir.Value, tables: tuple[ir.Value, ir.Value]) -> ir.Value:
        """The sum over the kernel; ``coefficients`` is ``[slots, block, kernel, groups, group]``."""
        blocks = op.Reshape(x, [-1, self.block, self.groups, self.group])
        shifted = op.Gather(blocks, tables[0], axis=1)
        return op.Reshape(op.ReduceSum(op.Mul(shifted, coefficients), [2], keepdims=0), [-1, self.hidden])
