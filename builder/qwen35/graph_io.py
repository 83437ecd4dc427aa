"""A target's graph from outside: its inputs and outputs by name.

The inputs of paged attention are named in :mod:`onnxkit.layers.paged_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import OpBuilder

from builder.qwen35.layout import LayerState
from onnxkit.layers import kv_cache
from onnxkit.layers.graph import Outputs, Type

INPUT_IDS, ATTENTION_MASK = "input_ids", "attention_mask"
LOGITS_INDICES = "logits_indices"
CAPTURE_COUNT, CAPTURE_ACTIVE = "state_update_capture_count", "state_update_active"
LOGITS, HIDDEN_STATES, AUX_HIDDEN_STATES = "logits", "hidden_states", "aux_hidden_states"

# Names of a layer's state by the attribute that holds it, going in and coming out.
PAST = kv_cache.PAST | {"conv": "past.%d.conv", "recurrent": "past.%d.recurrent"}
PRESENT = kv_cache.PRESENT | {
    "conv": "present.%d.conv",
    "recurrent": "present.%d.recurrent",
    "conv_value": "state_update.%d.conv_value",
    "recurrent_capsule": "state_update.%d.recurrent_capsule",
}


class TargetOutputs(Outputs):
    """The outputs of a target's graph."""

    def add_states(self, states: Sequence[LayerState], types: dict[str, Type]) -> None:
        """Append every layer's new state, what it captured included; ``types`` is by part."""
        for layer, state in enumerate(states):
            for part, value in vars(state).items():
                if value is not None:
                    self.add(PRESENT[part] % layer, value, *types[part])


def concatenated_taps(op: OpBuilder, entering: Sequence[ir.Value], taps: Sequence[int]) -> ir.Value:
    """The tapped streams side by side, ``[tokens, taps * hidden]``, in the order given.

    Each is in the graph's element type already: the residual stream and the model's inputs and outputs share it.
    """
    return op.Concat(*[entering[tap] for tap in taps], axis=-1)
