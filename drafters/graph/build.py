"""From a drafter's configuration to its graph."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import GraphBuilder

from drafters.checkpoint.config import DFlash, DFlash2, DrafterConfig, DSpark
from drafters.graph.dflash import DFlashDrafter
from drafters.graph.dflash2 import DFlash2Drafter
from drafters.graph.dspark import DSparkDrafter
from drafters.graph.graph_io import DrafterOptions, declare_inputs
from onnxkit.layers.graph import IR_VERSION, empty_graph

DRAFTERS: dict[type[DFlash | DFlash2 | DSpark], type[DFlashDrafter | DFlash2Drafter | DSparkDrafter]] = {
    DFlash: DFlashDrafter,
    DFlash2: DFlash2Drafter,
    DSpark: DSparkDrafter,
}


def build_drafter(config: DrafterConfig, options: DrafterOptions) -> ir.Model:
    """Build the graph. Its weights are parameters without data yet; each says where its bytes come from."""
    graph = empty_graph(config.kind)
    builder = GraphBuilder(graph)
    inputs, caches = declare_inputs(builder, config, options)
    module = DRAFTERS[type(config.variant)](config, options)
    graph.outputs.extend(module(builder.op, inputs, caches))
    return ir.Model(graph, ir_version=IR_VERSION)
