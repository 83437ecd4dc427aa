"""Linear attention: the gated delta net (Yang et al., Gated Delta Networks, 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from builder.qwen35.config import LinearAttentionConfig, TargetConfig
from builder.qwen35.layout import DeltaState, DenseRun, PackedRun
from onnxkit.layers.graph import CONTRIB, cast
from onnxkit.layers.norms import L2Norm
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Linear, StackedLinear, whole
from onnxkit.weights.parameters import NEG_EXP, Rows, Source, Weight

F32 = ir.DataType.FLOAT

# transformers adds it to the sum of squares of a query or key before the square root.
L2_EPSILON = 1e-6


class CausalConv(nn.Module):
    """The depthwise causal convolution over queries, keys and values."""

    def __init__(self, channels: int, kernel: int, precision: Precision) -> None:
        super().__init__()
        self.weight = Weight("weight", [channels, 1, kernel], precision.activations)

    def forward(self, op: OpBuilder, x: ir.Value, state: ir.Value) -> tuple[ir.Value, ir.Value]:
        """``[batch, sequence, channels]`` -> the same with SiLU applied, and the new state."""
        y, present = op.CausalConvWithState(
            x, self.weight, None, state, activation="silu", channels_last=1, _outputs=2, **CONTRIB
        )
        return y, present


class VarlenCausalConv(nn.Module):
    """The same convolution over packed sequences, each with its own state."""

    def __init__(self, channels: int, kernel: int, precision: Precision) -> None:
        super().__init__()
        self.weight = Weight("weight", [channels, 1, kernel], precision.activations)

    def forward(self, op: OpBuilder, x: ir.Value, run: PackedRun, state: ir.Value) -> list[ir.Value]:
        """``[tokens, channels]`` -> the same with SiLU applied, the new state, and captured inputs if there are any."""
        inputs = [x, self.weight, run.paging.cumulative_lengths, None, state]
        if not run.capacity:
            return list(op.VarlenCausalConvWithState(*inputs, activation="silu", _outputs=2, **CONTRIB))
        captured = {"state_update_capacity": run.capacity}
        outputs = op.VarlenCausalConvWithState(
            *inputs, run.capture_count, activation="silu", _outputs=3, **captured, **CONTRIB
        )
        return list(outputs)


class GatedNorm(nn.Module):
    """RMS norm of each value head, times ``silu(gate)``. Its weight is stored as it is applied, without a +1."""

    def __init__(self, size: int, epsilon: float, precision: Precision) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = Weight("weight", [size], precision.activations)

    def forward(self, op: OpBuilder, x: ir.Value, gate: ir.Value) -> ir.Value:
        """``[tokens, heads * size]`` -> the same."""
        return op.GatedRMSNorm(x, self.weight, gate, epsilon=self.epsilon, **CONTRIB)


def _projections(config: TargetConfig, precision: Precision, gates_together: bool = False) -> StackedLinear:
    """What the convolution takes, the norm's gate, and what the two gates of the recurrence are made of.

    The last two, ``b`` and ``a``, are one value where ``gates_together`` says so.
    """
    sizes = config.linear
    widths = {"qkv": sizes.conv_channels, "z": sizes.value_width, "b": sizes.value_heads, "a": sizes.value_heads}
    qkv, z, b, a = (whole(f"in_proj_{name}", n) for name, n in widths.items())
    return StackedLinear(config.hidden_size, [qkv, z, b + a] if gates_together else [qkv, z, b, a], precision)


class DenseGatedDeltaNet(nn.Module):
    """The gated delta net of the dense layout, on CausalConvWithState and LinearAttention.

    What lies between the convolution and the gated norm is float32 in any precision, as in transformers: the state is
    fed back at every token, so that what rounding it loses adds up.
    """

    def __init__(self, config: TargetConfig, precision: Precision) -> None:
        super().__init__()
        sizes = self.sizes = config.linear
        self.dtype = precision.activations
        self.projections = _projections(config, precision)
        self.conv1d = CausalConv(sizes.conv_channels, sizes.kernel, precision)
        self.dt_bias = Weight("dt_bias", [sizes.value_heads], F32)
        decay = Source((Rows("A_log", sizes.value_heads),), transform=NEG_EXP)
        self.decay_scale = Weight("decay_scale", [sizes.value_heads], F32, decay)
        self.l2_norm = L2Norm(sizes.key_dim, L2_EPSILON)
        self.norm = GatedNorm(sizes.value_dim, config.rms_norm_eps, precision)
        self.out_proj = Linear(sizes.value_width, config.hidden_size, precision)

    def forward(self, op: OpBuilder, x: ir.Value, run: DenseRun, state: DeltaState) -> tuple[ir.Value, DeltaState]:
        """``[tokens, hidden] -> [tokens, hidden]``, and the state after the last token."""
        qkv, z, b, a = self.projections(op, x)
        qkv, conv = self.conv1d(op, op.Reshape(qkv, run.sequence_shape), state.conv)
        query, key, value = self._heads(op, qkv, run)
        decay, beta = op.LinearAttentionGate(
            self._float32(op, op.Reshape(a, run.sequence_shape)),
            self.dt_bias,
            self.decay_scale,
            self._float32(op, op.Reshape(b, run.sequence_shape)),
            _outputs=2,
            **CONTRIB,
        )
        y, recurrent = op.LinearAttention(
            query,
            key,
            value,
            state.recurrent,
            decay,
            beta,
            q_num_heads=self.sizes.key_heads,
            kv_num_heads=self.sizes.value_heads,
            update_rule="gated_delta",
            _outputs=2,
            **CONTRIB,
        )
        y = cast(op, op.Reshape(y, [-1, self.sizes.value_width]), F32, self.dtype)
        return self.out_proj(op, self.norm(op, y, z)), DeltaState(conv, recurrent)

    def _heads(self, op: OpBuilder, qkv: ir.Value, run: DenseRun) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Queries and keys of unit length, and values, ``[batch, sequence, heads * dim]`` in float32."""
        width, dim = self.sizes.key_heads * self.sizes.key_dim, self.sizes.key_dim
        query, key, value = op.Split(
            self._float32(op, qkv), [width, width, self.sizes.value_width], axis=-1, _outputs=3
        )
        query, key = (op.Reshape(self.l2_norm(op, op.Reshape(t, [-1, dim])), run.sequence_shape) for t in (query, key))
        return query, key, value

    def _float32(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return cast(op, x, self.dtype, F32)


class Recurrence(nn.Module):
    """The gated delta rule over packed sequences, with its gates and the unit length of queries and keys inside.

    The operator adds 1e-12 to the sum of squares where transformers adds 1e-6.
    """

    def __init__(self, sizes: LinearAttentionConfig) -> None:
        super().__init__(name="")
        self.sizes = sizes
        self.A_log = Weight("A_log", [sizes.value_heads], F32)
        self.dt_bias = Weight("dt_bias", [sizes.value_heads], F32)

    def forward(
        self, op: OpBuilder, qkv: ir.Value, a: ir.Value, b: ir.Value, run: PackedRun, state: ir.Value
    ) -> list[ir.Value]:
        """``[tokens, channels]`` -> ``[tokens, value heads, value dim]``, the new state, and a capsule if any.

        ``a`` and ``b`` are float32, and the gate's activation has its older name: onnxruntime 1.31 takes nothing else.
        """
        query, key, value = self._heads(op, qkv)
        lengths = run.paging.cumulative_lengths
        inputs: list[ir.Value | None] = [query, key, value, lengths, a, b, state, self.A_log, self.dt_bias]
        attributes = {
            "update_rule": "gated_delta",
            "gate_activation": "qwen",
            "beta_activation": "sigmoid",
            "qk_l2_norm": 1,
        }
        if not run.capacity:
            return list(op.GatedDeltaNet(*inputs, **attributes, _outputs=2, **CONTRIB))
        attributes["state_update_capacity"] = run.capacity
        inputs += [run.capture_count, run.capture_active]
        return list(op.GatedDeltaNet(*inputs, **attributes, _outputs=3, **CONTRIB))

    def _heads(self, op: OpBuilder, qkv: ir.Value) -> list[ir.Value]:
        """Queries, keys and values, ``[tokens, heads, dim]`` each.

        The operator also takes them side by side, but then separates them with three copies; the split is one kernel.
        """
        sizes = self.sizes
        kinds = [(sizes.key_heads, sizes.key_dim)] * 2 + [(sizes.value_heads, sizes.value_dim)]
        parts = op.Split(qkv, [heads * dim for heads, dim in kinds], axis=-1, _outputs=3)
        return [op.Reshape(part, [-1, *kind]) for part, kind in zip(parts, kinds, strict=True)]


class PackedGatedDeltaNet(nn.Module):
    """The gated delta net of the packed layout, on VarlenCausalConvWithState and GatedDeltaNet."""

    def __init__(self, config: TargetConfig, precision: Precision) -> None:
        super().__init__()
        sizes = self.sizes = config.linear
        self.dtype = precision.activations
        self.projections = _projections(config, precision, gates_together=precision.weights.stacked)
        self.conv1d = VarlenCausalConv(sizes.conv_channels, sizes.kernel, precision)
        self.recurrence = Recurrence(sizes)
        self.norm = GatedNorm(sizes.value_dim, config.rms_norm_eps, precision)
        self.out_proj = Linear(sizes.value_width, config.hidden_size, precision)

    def forward(self, op: OpBuilder, x: ir.Value, run: PackedRun, state: DeltaState) -> tuple[ir.Value, DeltaState]:
        """``[tokens, hidden] -> [tokens, hidden]``, and the states after each sequence's last token."""
        qkv, z, *gates = self.projections(op, x)
        qkv, conv, *conv_value = self.conv1d(op, qkv, run, state.conv)
        b, a = self._gates(op, gates)
        y, recurrent, *capsule = self.recurrence(op, qkv, a, b, run, state.recurrent)
        y = op.Reshape(y, [-1, self.sizes.value_width])
        return self.out_proj(op, self.norm(op, y, z)), DeltaState(conv, recurrent, *conv_value, *capsule)

    def _gates(self, op: OpBuilder, gates: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """``b`` and ``a`` in float32, ``[tokens, value heads]`` each. One value is cast as one, then split."""
        wide = [cast(op, part, self.dtype, F32) for part in gates]
        return op.Split(*wide, [self.sizes.value_heads] * 2, axis=-1, _outputs=2) if len(wide) == 1 else wide
