"""Drafters for tests: tiny ones in many variants, built as graphs alone or exported beside the bundled target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from safetensors.torch import load_file

from builder.drafter import Drafter
from builder.drafter_graph import plan_drafter
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.identity import identity
from drafters.checkpoint.reading import read_identified
from drafters.graph.graph_io import DrafterOptions
from draftsmith.validation.draft_session import DraftSession
from draftsmith.validation.drafter_reference import ReferenceDrafter, load_drafter
from draftsmith.validation.paged import lower_graph
from draftsmith.validation.widen import widen_graph
from onnxkit.layers.graph import BF16
from onnxkit.layers.precision import Precision
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import PREFIX, TINY
from tests.tiny_drafter import Json, Tensors, make_config, make_tensors, write

Change = Callable[[Json], object]


def drafter(
    folder: Path,
    kind: str,
    *changes: Change,
    tensors: Callable[[Tensors], object] | None = None,
    after: Change | None = None,
) -> Path:
    """A tiny drafter whose configuration is changed before its tensors are made; both may be changed afterwards."""
    config = make_config(kind)
    for change in changes:
        change(config)
    made = make_tensors(config)
    if tensors:
        tensors(made)
    if after:
        after(config)
    write(folder, config, made)
    return folder


def own(**keys: object) -> Change:
    """Set keys of the drafter's own section."""
    return lambda config: config["dflash_config"].update(keys)


def top(**keys: object) -> Change:
    """Set keys of the top level."""
    return lambda config: config.update(keys)


def sliding(window: int, *kinds: str, causal: bool | None = False) -> Change:
    """Make the layers slide, all of them or those of the kinds given."""
    kinds = kinds or ("sliding_attention",) * 2
    return top(layer_types=list(kinds), sliding_window=window, use_sliding_window=True, is_causal=causal)


def yarn(config: Json) -> None:
    """Stretch a trained context of 64, as drafters for long contexts are."""
    parameters = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64}
    config["rope_parameters"] |= parameters


def target_table(name: str) -> torch.Tensor:
    """The bundled target's ``embedding`` or ``head``."""
    full = {"embedding": f"{PREFIX}embed_tokens.weight", "head": "lm_head.weight"}[name]
    return load_file(TINY / "model.safetensors")[full]


@dataclass(frozen=True)
class Alone:
    """A drafter's graph without a target's beside it, lowered, and its reference."""

    path: Path
    config: DrafterConfig
    reference: ReferenceDrafter

    def session(self, requests: int) -> DraftSession:
        """Run it as the Engine does, with a ring where it has a window."""
        config = self.config
        return DraftSession(self.path, requests, config.block_size, config.mask_token_id, config.window)


def alone(
    folder: Path, out: Path, *, page: int = 16, dtype: ir.DataType = BF16, drafts: int | None = None, tied: bool = False
) -> Alone:
    """Build the graph of the drafter in ``folder`` with pages of any size, lower it, and load the reference."""
    checkpoint = Checkpoint(folder)
    found = identity(checkpoint)
    config = read_identified(checkpoint, found, 4)
    shortened = config.shortened(drafts) if drafts else config
    names = ("model.embed_tokens.weight", "model.embed_tokens.weight" if tied else "lm_head.weight")
    model, plan = plan_drafter(
        Drafter(checkpoint, shortened, config.block_size, found.left_out),
        DrafterOptions(Precision.dense(dtype), 1200 - config.block_size, page, *names),
    )
    tables = [target_table("embedding"), target_table("embedding" if tied else "head")]
    rounded = [table.to(torch.float16 if dtype == ir.DataType.FLOAT16 else torch.bfloat16).float() for table in tables]
    for name, value in model.graph.initializers.items():
        value.const_value = plan.initializers[name].tensor
    for name in plan.shared:
        value = model.graph.initializers[name]
        value.const_value = ir.Tensor(rounded[names.index(name)].numpy(), name=name)
        value.type = ir.TensorType(ir.DataType.FLOAT)
    widen_graph(model.graph)
    lower_graph(model)
    out.mkdir()
    ir.save(model, out / "drafter.onnx", external_data="drafter.onnx.data")
    return Alone(out / "drafter.onnx", shortened, load_drafter(folder, shortened, rounded[0], rounded[1]))
