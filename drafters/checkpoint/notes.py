"""What the user should know of how a drafter's configuration was read."""

from __future__ import annotations

from collections.abc import Iterator

from drafters.checkpoint import conventions
from drafters.checkpoint.dialects.dialect import Bound
from drafters.checkpoint.identity import Identity
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.mask_row import MASK_FILE
from drafters.checkpoint.names import tensor
from drafters.checkpoint.sections import ConfigSections
from onnxkit.rotary import Rotary
from onnxkit.weights.checkpoint import Checkpoint


def notes_of(checkpoint: Checkpoint, found: Identity, rotary: Rotary, rope_theta: float | None) -> Iterator[str]:
    """What deliberately has no effect, and what is done differently than in training.

    Args:
        checkpoint: The drafter's folder, opened.
        found: Its kind and producer.
        rotary: The rotary embedding that was read.
        rope_theta: The rotary base that was asked for in place of the one that is written.
    """
    sections, dialect = found.sections, found.dialect
    for key in ("output_multiplier", "final_logit_softcapping"):
        if found.family == Family.DSPARK and key in sections:
            sections.number(key)
            yield f"{key} is not applied: a Markov head is trained on the head's own logits"
    windows = [layer.window for layer in conventions.layers(sections, 1) if layer.window]
    if dialect.windows.bound is Bound.BLOCK and windows:
        yield (
            f"{dialect.name} trains all rows of a block with one bound, {windows[0]} positions before the anchor, "
            f"which for the anchor's row alone is a window of {windows[0] + 1}. Here each row has its own window of "
            f"{windows[0]}, as vLLM serves it: row j of a block sees j + 1 positions of the context fewer than in "
            "training, which costs nothing before the context is longer than the window"
        )
    if dialect.unsaid_window and not windows:
        yield dialect.unsaid_window
    if rope_theta is not None:
        written = conventions.rotary(sections, rotary.dim, conventions.layer_kinds(sections)).theta
        yield f"its rotary base is {rope_theta:g}, as drafter_rope_theta asks for; config.json says {written:g}"
    elif found.family in dialect.theta_in_doubt:
        yield dialect.theta_in_doubt[found.family]
    yield from _position_notes(sections, rotary)
    if checkpoint.file(MASK_FILE):
        yield f"{MASK_FILE} holds the mask token's row: it stands in the place of the embedding's, as when serving"
    yield from _type_notes(checkpoint, found)


def _position_notes(sections: ConfigSections, rotary: Rotary) -> Iterator[str]:
    declared = sections.integer("max_position_embeddings", default=None)
    if rotary.yarn and declared and declared > rotary.yarn.length:
        yield (
            f"YaRN stretches its context to {rotary.yarn.length} positions, max_position_embeddings is {declared}: the "
            "former counts"
        )


def _type_notes(checkpoint: Checkpoint, found: Identity) -> Iterator[str]:
    fused = tensor(checkpoint, found.names, "fc.weight")
    for key in ("dtype", "torch_dtype"):
        known = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
        declared = found.sections.data.get(key)
        if fused and declared and known.get(declared, fused.dtype) != fused.dtype:
            yield f"config.json says {declared}, the tensors are {fused.dtype}; the tensors count"
