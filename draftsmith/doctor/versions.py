"""What onnxruntime 1.32 accepts in the operators that exports use, and 1.31.1 does not.

An attribute that a version does not know fails the load of the whole graph, even at its default value. A value that it
does not know passes every schema, and fails only on the GPU, when the kernel is made; so both are checked for here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

NEWER = (1, 32)

# Read from the schemas of both versions.
_ATTRIBUTES = {
    "VarlenCausalConvWithState": {"kernel_delta", "previous_mask", "delta_offset", "group_size"},
    "CausalConvWithState": {
        "input_channel_offset",
        "input_channels",
        "state_channels_last",
        "state_length",
        "state_update_capacity",
    },
    "GatedDeltaNet": {"gate_lower_bound"},
    "GroupQueryAttention": {"q_norm_epsilon", "k_norm_epsilon", "query_seqlens"},
    "MoE": {"swiglu_limit_after_activation"},
    "QMoE": {"swiglu_limit_after_activation"},
}
_INPUTS = {"GatedAdd": 3, "GroupQueryAttention": 16, "VarlenCausalConvWithState": 6}
_OUTPUTS = {"CausalConvWithState": 2}
_FLOAT_INPUTS = {"GatedDeltaNet": (4, 5)}  # decay and beta
_VALUES = {("GatedDeltaNet", "gate_activation"): ("none", "qwen")}


def newer_parts(nodes: Iterable[ir.Node]) -> list[str]:
    """Attributes, values, inputs and outputs that only the newer version accepts, each with the number of nodes."""
    found: Counter[str] = Counter()
    for node in nodes:
        kind = node.op_type
        for name, attribute in node.attributes.items():
            if name in _ATTRIBUTES.get(kind, ()):
                found[f"{kind}: the attribute {name}"] += 1
            accepted = _VALUES.get((kind, name))
            if accepted and attribute.as_string() not in accepted:
                found[f'{kind}: {name}="{attribute.as_string()}" (known: {", ".join(accepted)})'] += 1
        for what, values, most in (("inputs", node.inputs, _INPUTS), ("outputs", node.outputs, _OUTPUTS)):
            if len(values) > most.get(kind, len(values)):
                found[f"{kind}: {len(values)} {what} (known: {most[kind]})"] += 1
        for index in _FLOAT_INPUTS.get(kind, ()):
            dtype = _dtype(node.inputs[index])
            if dtype not in (None, ir.DataType.FLOAT):
                found[f"{kind}: input {index} in {dtype} (known: FLOAT)"] += 1
    return [f"{part}, in {count} {'node' if count == 1 else 'nodes'}" for part, count in found.items()]


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    """The type of a value for which a file gives none, as far as the nodes before it tell."""
    while value is not None and value.dtype is None:
        node = value.producer()
        if node is None:
            return None
        if node.op_type == "Cast":
            return ir.DataType(node.attributes["to"].as_int())
        # A product has the type of its weight, a node that only moves numbers that of its input.
        value = node.inputs[1] if node.op_type in ("Gemm", "MatMul") else node.inputs[0]
    return value.dtype if value is not None else None
