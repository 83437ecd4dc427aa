"""What the targets of both layouts are made of: text model, head and rotary tables, and the states that go in."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import GraphBuilder, OpBuilder, nn

from builder.family import TargetOptions
from builder.qwen35.config import FULL, TargetConfig
from builder.qwen35.decoder import TextModel, TextOutput
from builder.qwen35.graph_io import PAST, concatenated_taps
from builder.qwen35.layout import DeltaState, LayerState, Layout
from onnxkit.layers.graph import Type
from onnxkit.layers.kv_cache import KeyValueCache
from onnxkit.layers.projection import LMHead
from onnxkit.layers.rotary import RotaryTables


class CausalLM(nn.Module):
    """The parts of a target; its layout's ``forward`` puts them together."""

    def __init__(self, config: TargetConfig, options: TargetOptions, layout: Layout) -> None:
        super().__init__()
        self.config, self.options = config, options
        self.rotary_emb = RotaryTables(config.rotary, options.context_length, options.precision)
        self.model = TextModel(config, layout, options.precision)
        tied = self.model.embed_tokens if options.tied else None
        self.lm_head = LMHead(config.hidden_size, config.vocab_size, options.precision, tied)

    def taps(self, op: OpBuilder, text: TextOutput) -> ir.Value:
        """The tapped streams side by side, ``[tokens, taps * hidden]``."""
        last = text.normed if self.options.normed_last_tap else text.entering[-1]
        return concatenated_taps(op, [*text.entering[:-1], last], self.options.taps)


def state_inputs(builder: GraphBuilder, config: TargetConfig, types: dict[str, Type]) -> list[LayerState]:
    """Declare every layer's state as inputs of the graph; ``types`` is by part."""

    def past(layer: int, part: str) -> ir.Value:
        return builder.input(PAST[part] % layer, *types[part])

    return [
        KeyValueCache(past(i, "key"), past(i, "value"))
        if kind == FULL
        else DeltaState(past(i, "conv"), past(i, "recurrent"))
        for i, kind in enumerate(config.layer_types)
    ]
