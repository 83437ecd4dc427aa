"""DSpark's heads, told by their tensors and checked against the keys that describe them."""

from __future__ import annotations

from drafters.checkpoint.config import DSpark
from drafters.checkpoint.homes import Homes
from drafters.checkpoint.names import DraftNames, tensor
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint

_GATE, _W1 = "markov_head.gate_proj.weight", "markov_head.markov_w1.weight"
_CONFIDENCE = ("confidence_head.proj.weight", "confidence_head.proj.bias")


def markov_head(checkpoint: Checkpoint, homes: Homes, names: DraftNames, hidden: int, predicts: bool) -> DSpark:
    """What only a DSpark drafter has.

    Raises:
        ExportError: Keys and tensors disagree, or a head has another shape.
    """
    rank = homes.integer("markov_rank", minimum=0)
    if rank == 0 and names.having("markov_head."):
        raise homes.error("markov_rank", f"the width of the stored {names(_W1)}")
    stored = "gated" if names.having("markov_head.gate_proj.") else "vanilla"
    declared = homes.string("markov_head_type", default=stored)
    if rank and declared != stored:
        raise ExportError(
            "Config and tensors differ.",
            where=homes.place("markov_head_type"),
            found=f"{declared}; by its tensors, {stored}",
            accepted="vanilla or gated, as the tensors are (the state of an rnn head is no score of a pair)",
            fix="Use a drafter with such a head, with its own config.json.",
        )
    return DSpark(rank, stored == "gated", _confidence_width(checkpoint, homes, names, hidden, rank), predicts)


def _confidence_width(checkpoint: Checkpoint, homes: Homes, names: DraftNames, hidden: int, rank: int) -> int | None:
    """The width of the confidence head's input: the hidden state, perhaps with the previous token's embedding."""
    keys = ("enable_confidence_head", "use_confidence_head")
    declared = homes.agreed({key: homes.boolean(key, default=None) for key in keys})
    both = homes.boolean("confidence_head_with_markov", default=None)
    if not names.having("confidence_head."):
        if declared:
            key = next(key for key in keys if key in homes)
            raise ExportError(
                "The confidence head that the config declares is not stored.",
                where=f"{homes.place(key)} and the tensors of {checkpoint.folder}",
                found=f"no {_CONFIDENCE[0]}",
                accepted=f"the tensor, or {key} false",
                fix="Complete the download.",
            )
        return None
    found = [tensor(checkpoint, names, name) for name in _CONFIDENCE]
    shapes = [list(part.shape) for part in found if part is not None]
    widths = {False: [hidden], True: [hidden + rank], None: [hidden, hidden + rank]}[both]
    accepted = [[[1, width], [1]] for width in widths]
    floats = all(part.dtype in ("BF16", "F16", "F32", "F64") for part in found if part is not None)
    if shapes not in accepted or not floats:
        raise ExportError(
            "The confidence head has another shape or type.",
            where=f"{checkpoint.folder}: {names(_CONFIDENCE[0])}; {homes.place('confidence_head_with_markov')}",
            found=" and ".join(f"{part.dtype} {list(part.shape)}" for part in found if part is not None),
            accepted=f"{' or '.join(f'[1, {width}]' for width in widths)}, and [1], floating point",
            fix="Get weights and config.json from one release.",
        )
    checkpoint.claim(names(name) for name in _CONFIDENCE)
    return shapes[0][1] if shapes else None
