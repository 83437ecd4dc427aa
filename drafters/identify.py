"""Which kind of drafter a checkpoint is: its tensors say so, for the names in configurations lie."""

from __future__ import annotations

from collections.abc import Iterable

from onnxkit.errors import ExportError, listed
from onnxkit.weights.checkpoint import Checkpoint

# What the runtime takes, by the runtime's name, and what to call it.
DFLASH2, DSPARK = "dflash2", "dspark"
TITLES = {DFLASH2: "DFlash 2", DSPARK: "DSpark"}

# Parts of tensor names that tell a kind, in the order in which they are looked for.
_MARKS = {
    "prefix_gru.": "Domino",
    "midlayer.": "EAGLE3",
    "candidate_selector.": DFLASH2,
    ".attention_conv.": DFLASH2,
    "markov_w1": DSPARK,
    "linear_attn.": "a target model",
}


def identify(checkpoint: Checkpoint) -> str:
    """The kind of drafter, ``dflash2`` or ``dspark``.

    Raises:
        ExportError: It is another kind, which is named where it is known.
    """
    for mark, kind in _MARKS.items():
        if marked := [name for name in checkpoint.tensors if mark in name]:
            if kind in TITLES:
                return kind
            raise _not_taken(checkpoint, kind, marked)
    has_fc = [name for name in checkpoint.tensors if name.endswith("fc.weight")]
    raise _not_taken(
        checkpoint, "a plain DFlash drafter (v1)" if has_fc else "no drafter", has_fc or checkpoint.tensors
    )


def _not_taken(checkpoint: Checkpoint, kind: str, names: Iterable[str]) -> ExportError:
    return ExportError(
        "The drafter's folder holds something else.",
        where=checkpoint.folder,
        found=f"{kind}, by its tensors:\n{listed(list(names)[:3])}",
        accepted="a DFlash 2 drafter (candidate_selector.*) or a DSpark drafter (markov_head.markov_w1.weight)",
        fix="Point the option at the folder of such a drafter.",
    )
