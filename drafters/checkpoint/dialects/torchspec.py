"""TorchSpec: flat keys, names of its own for the fused taps, and no block size, which only its trainer knew.

Its ``num_target_layers`` counts taps. Where it counts the target's layers, another trainer wrote the file.
"""

from __future__ import annotations

from drafters.checkpoint.dialects.dialect import Bound, Dialect, Windows
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Use, without_effect


def _recognised(config: JsonObject) -> str | None:
    if "target_num_hidden_layers" not in config or config.data.get("model_type") != "dflash":
        return None
    taps = config.integers("target_layer_ids", default=())
    counted = config.integer("num_target_layers", default=len(taps)) == len(taps)
    return "model_type dflash, and num_target_layers that counts the taps" if counted else None


DIALECT = Dialect(
    name="TorchSpec",
    sources=("TorchSpec at 6f21829, and drafters that it wrote",),
    keeps="the top level",
    recognised=_recognised,
    aliases={"context_proj.": "fc.", "context_norm.": "hidden_norm.", "final_norm.": "norm."},
    marks=("context_proj.weight",),
    renames={"num_target_layers": "num_taps", "target_num_hidden_layers": "num_target_layers"},
    keys=(
        Key("num_taps", Use.CHECKED, "the number of taps; TorchSpec writes it as num_target_layers", own=True),
        *without_effect("_torchspec_version", "a version"),
    ),
    capture="the stream of a serving engine",
    windows=Windows(Bound.NONE, slides="none", causal="none"),
    block_size="nowhere: `drafter_block_size` says it",
    rotary="`rope_parameters`, or `rope_theta` and `rope_scaling`; plain or YaRN",
)
