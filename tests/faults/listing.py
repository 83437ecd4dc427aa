"""All faults: in the graphs, in the configuration, in the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tests.faults import Fault
from tests.faults.graphs import (
    Edit,
    attribute,
    concat_order,
    edited,
    inputs,
    move_all_taps,
    move_tap,
    normed_tap,
    other_rows,
    outputs,
    rolled_unary,
    rotated,
    shared_table,
    table,
    transpose_pairs,
    weights,
)

Json = dict[str, Any]

# A DFlash 2 drafter with full attention, one with a window of 40, a DSpark drafter.
D2, DS, WINDOWED = ("dflash2",), ("dspark",), ("windowed",)
BOTH = ("dflash2", "dspark")

PAGED, NORM = "PagedAttention", "SkipSimplifiedLayerNormalization"

TARGET: list[tuple[str, Edit]] = [
    *(
        (f"tap {place + 1} {'before' if by < 0 else 'behind'} its layer", move_tap(place, by))
        for place in (0, 1, 2)
        for by in (-1, 1)
    ),
    ("every tap one layer early", move_all_taps(-1)),
    ("every tap one layer late", move_all_taps(1)),
    ("two taps in the other order", inputs("Concat", 0, 1, -1)),
    ("a tap behind the norm", normed_tap),
    ("target: rope base 1.5 times", rotated(theta_times=1.5)),
    ("target: positions scaled", rotated(position_times=0.5)),
    ("target: a norm's epsilon", attribute(NORM, "epsilon", 1e-5, 3)),
    ("target: a gated norm's epsilon", attribute("GatedRMSNorm", "epsilon", 1e-5, 0)),
    ("target: q and k norms swapped", inputs(PAGED, 12, 13)),
    ("target: gate and up swapped", outputs("Split", "mlp")),
    ("target: a window", attribute(PAGED, "local_window_size", 64, 1)),
    ("target: queries and keys not of unit length", attribute("GatedDeltaNet", "qk_l2_norm", 0, 0)),
    ("target: decays of another layer", weights("layers.0.linear_attn.A_log", "layers.1.linear_attn.A_log")),
]

DRAFTER: list[tuple[str, Edit, tuple[str, ...]]] = [
    ("a window where there is none", attribute(PAGED, "local_window_size", 40), BOTH),
    ("a window of 39 in place of 40", attribute(PAGED, "local_window_size", 39), WINDOWED),
    ("a window of 41 in place of 40", attribute(PAGED, "local_window_size", 41), WINDOWED),
    ("no window", attribute(PAGED, "local_window_size", -1), WINDOWED),
    ("one layer's window", attribute(PAGED, "local_window_size", 39, 1), WINDOWED),
    ("a causal block", attribute(PAGED, "is_causal", 1), BOTH),
    ("one layer's block causal", attribute(PAGED, "is_causal", 1, 1), BOTH),
    ("rope base 1.1 times", rotated(theta_times=1.1), BOTH),
    ("rope scale", rotated(position_times=0.25), BOTH),
    ("rope attention factor", rotated(factor=1.05), BOTH),
    ("no rotary embedding", attribute(PAGED, "do_rotary", 0), BOTH),
    ("q and k norms' epsilon", attribute(PAGED, "qk_norm_epsilon", 1e-5), BOTH),
    ("a norm's epsilon", attribute(NORM, "epsilon", 1e-5, 1), BOTH),
    ("q and k norms swapped", inputs(PAGED, 12, 13), BOTH),
    ("attention scale", attribute(PAGED, "scale", 0.17), BOTH),
    ("gate and up swapped", outputs("Split", "mlp/"), BOTH),
    ("context before block", concat_order, BOTH),
    ("hidden and final norm swapped", weights("hidden_norm.weight", "norm.weight"), BOTH),
    ("taps fused in another order", table("fc.weight", lambda w: np.roll(w, w.shape[1] // 3, axis=1)), BOTH),
    ("previous and current transposed", transpose_pairs, BOTH),
    ("scores added to the wrong row", rolled_unary, BOTH),
    ("the mask in the anchor's place", table("previous_columns", lambda t: t + (t == 0)), BOTH),
    ("the anchor row predicts", other_rows(0, 7), D2),
    ("a convolution reads before the block", table("layers.0.block_tables.tap_mask", np.ones_like), D2),
    ("tap order in the convolution", table("layers.0.block_tables.tap_rows", lambda t: t[:, ::-1]), D2),
    ("sides of a convolution swapped", outputs("Split", "attention_conv"), D2),
    ("convolutions swapped", weights("layers.0.attention_conv.base", "layers.0.mlp_conv.base"), D2),
    ("codebooks swapped", weights("predecessor", "successor"), D2),
    ("Markov tables swapped", weights("markov_w1", "markov_w2"), DS),
]


def configured(change: Callable[[Json, Json], object]) -> Callable[[Path], None]:
    """A fault's function: change the configuration; the function gets all of it, and the drafter's section."""

    def apply(folder: Path) -> None:
        path = folder / "genai_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        model = config["model"]
        change(config, model.get("dflash2") or model["dspark"])
        path.write_text(json.dumps(config), encoding="utf-8")

    return apply


def of_drafter(**values: object) -> Callable[[Json, Json], object]:
    """Set keys of the drafter's section."""
    return lambda config, drafter: drafter.update(values)


def of_decoder(**values: object) -> Callable[[Json, Json], object]:
    """Set keys of the decoder's section."""
    return lambda config, drafter: config["model"]["decoder"].update(values)


def of_part(*path: str, **values: object) -> Callable[[Json, Json], object]:
    """Set keys of a part of the configuration."""

    def change(config: Json, drafter: Json) -> None:
        for key in path:
            config = config[key]
        config.update(values)

    return change


def without_updates(config: Json, _: Json) -> None:
    """Remove the state updates, without which the Engine drafts nothing."""
    for group in config["model"]["decoder"]["state_groups"]:
        group.pop("state_update", None)


def smaller_updates(config: Json, _: Json) -> None:
    """Take back fewer drafts than the graph captures."""
    for group in config["model"]["decoder"]["state_groups"][1:]:
        group["state_update"]["capacity"] = 3


CONFIG: list[tuple[str, Callable[[Json, Json], object]]] = [
    ("config: block_size", of_drafter(block_size=7)),
    ("config: num_draft_tokens", of_drafter(num_draft_tokens=3)),
    ("config: block and drafts", of_drafter(block_size=5, num_draft_tokens=4)),
    ("config: mask_token_id", of_drafter(mask_token_id=7)),
    ("config: mask_token_id beyond the vocabulary", of_drafter(mask_token_id=640)),
    ("config: sliding_window", of_drafter(sliding_window=512)),
    ("config: selector_top_k", of_drafter(selector_top_k=3)),
    ("config: drafter's heads", of_drafter(num_key_value_heads=4)),
    ("config: drafter's head_size", of_drafter(head_size=64)),
    ("config: drafter's layers", of_drafter(num_hidden_layers=1)),
    ("config: taps are the ids", of_drafter(aux_hidden_state_layers=[1, 3, 5])),
    ("config: another output for the taps", of_drafter(main_aux_hidden_states="hidden_states")),
    ("config: an input's name", lambda config, drafter: drafter["inputs"].update(block_table="block_tables")),
    ("config: an output's name", lambda config, drafter: drafter["outputs"].update(scores="draft_score")),
    ("config: no state updates", without_updates),
    ("config: a smaller capacity", smaller_updates),
    ("config: no max_draft_tokens", lambda config, drafter: config.pop("speculative")),
    ("config: too many drafts", of_part("speculative", max_draft_tokens=9)),
    ("config: decoder's heads", of_decoder(num_key_value_heads=4)),
    ("config: decoder's head_size", of_decoder(head_size=128)),
    ("config: decoder's hidden_size", of_decoder(hidden_size=64)),
    ("config: shares nothing in the decoder", lambda config, d: config["model"]["decoder"].pop("shared_initializers")),
    ("config: offset of a shared tensor", lambda c, drafter: drafter["shared_initializers"][0].update(offset="2")),
    ("config: type of a shared tensor", lambda c, drafter: drafter["shared_initializers"][1].update(data_type=10)),
    ("config: page size", of_part("engine", "dynamic_batching", block_size=512)),
    ("config: context_length", of_part("model", context_length=9000)),
    ("config: vocab_size", of_part("model", vocab_size=512)),
    ("config: sampling", of_part("search", do_sample=True)),
    ("config: a repetition penalty", of_part("search", repetition_penalty=1.1)),
    ("config: a stop id is missing", of_part("model", eos_token_id=[5])),
    ("config: layers of a state", lambda c, d: c["model"]["decoder"]["state_groups"][1].update(layer_ids=[0, 1, 2])),
    ("config: an unknown key", of_part("model", "decoder", windows=4)),
]


def flip(name: str, data: str = "model.onnx.data") -> Callable[[Path], None]:
    """Change the highest bit but the sign of one element in a tensor's middle."""

    def apply(folder: Path) -> None:
        tensor = ir.load(folder / data.removesuffix(".data")).graph.initializers[name].const_value
        assert isinstance(tensor, ir.ExternalTensor) and tensor.offset is not None
        content = bytearray((folder / data).read_bytes())
        content[tensor.offset + tensor.nbytes // 2 + 1] ^= 0x08
        (folder / data).write_bytes(content)

    return apply


def shifted(name: str, by: int) -> Edit:
    """Let a tensor begin elsewhere in its file."""

    def edit(graph: ir.Graph) -> None:
        old = graph.initializers[name].const_value
        assert isinstance(old, ir.ExternalTensor)
        place = old.location, (old.offset or 0) + by, old.length, old.dtype
        moved = ir.ExternalTensor(*place, shape=old.shape, name=name, base_dir=old.base_dir)
        graph.initializers[name].const_value = moved

    return edit


def cut(folder: Path) -> None:
    """Cut a data file short."""
    path = next(folder.glob("d*.onnx.data"))
    path.write_bytes(path.read_bytes()[:-64])


FILES: list[tuple[str, Callable[[Path], object]]] = [
    ("one byte of the embedding", flip("model.embed_tokens.weight")),
    ("one byte of the head", flip("lm_head.weight")),
    ("one byte of a layer", flip("model.layers.4.mlp.down_proj.weight")),
    ("an offset in the target", edited("model", shifted("model.layers.2.mlp.down_proj.weight", 512))),
    ("an offset in the drafter", edited("drafter", shifted("layers.1.mlp.down_proj.weight", -256))),
    ("the shared head's offset", edited("drafter", shifted("lm_head.weight", 256))),
    ("the embedding in the head's place", shared_table),
    ("a data file cut short", cut),
    ("a data file missing", lambda folder: next(folder.glob("d*.onnx.data")).unlink()),
]

FAULTS = [
    *(Fault(name, edited("model", edit)) for name, edit in TARGET),
    *(Fault(name, edited("drafter", edit), kinds) for name, edit, kinds in DRAFTER),
    *(Fault(name, configured(change)) for name, change in CONFIG),
    Fault("config: no sliding_window", configured(of_drafter(sliding_window=0)), D2),  # DSpark needs none
    *(Fault(name, apply) for name, apply in FILES),
]
