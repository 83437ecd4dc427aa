"""DSpark's Markov head and confidence head, found by their tensors and checked against the keys that describe them."""

from __future__ import annotations

from drafters.checkpoint.config import DSpark
from drafters.checkpoint.dialects import CONFIDENCE_KEYS
from drafters.checkpoint.names import DraftNames, tensor
from drafters.checkpoint.sections import ConfigSections
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint

_GATE, _W1 = "markov_head.gate_proj.weight", "markov_head.markov_w1.weight"
CONFIDENCE_HEAD = ("confidence_head.proj.weight", "confidence_head.proj.bias")


def markov_head(
    checkpoint: Checkpoint, sections: ConfigSections, names: DraftNames, hidden: int, predicts: bool
) -> DSpark:
    """What only a DSpark drafter has.

    Raises:
        ExportError: Keys and tensors disagree, or a head has another shape.
    """
    rank = sections.integer("markov_rank", minimum=0)
    if rank == 0 and names.having("markov_head."):
        raise sections.error("markov_rank", f"the width of the stored {names(_W1)}")
    stored = "gated" if names.having("markov_head.gate_proj.") else "vanilla"
    declared = sections.string("markov_head_type", default=stored)
    if rank and declared != stored:
        raise ExportError(
            "Config and tensors differ.",
            where=sections.place("markov_head_type"),
            found=f"{declared}; by its tensors, {stored}",
            accepted="vanilla or gated, as the tensors are (the state of an rnn head is no score of a pair)",
            fix="Use a drafter with such a head, with its own config.json.",
        )
    return DSpark(rank, stored == "gated", _confidence_width(checkpoint, sections, names, hidden, rank), predicts)


def _confidence_width(
    checkpoint: Checkpoint, sections: ConfigSections, names: DraftNames, hidden: int, rank: int
) -> int | None:
    """The width of the confidence head's input: the hidden state, perhaps with the previous token's embedding."""
    declared = sections.agreed({key: sections.boolean(key, default=None) for key in CONFIDENCE_KEYS})
    both = sections.boolean("confidence_head_with_markov", default=None)
    if not names.having("confidence_head."):
        if declared:
            key = next(key for key in CONFIDENCE_KEYS if key in sections)
            raise ExportError(
                "The confidence head that the config declares is not stored.",
                where=f"{sections.place(key)} and the tensors of {checkpoint.folder}",
                found=f"no {CONFIDENCE_HEAD[0]}",
                accepted=f"the tensor, or {key} false",
                fix="Complete the download.",
            )
        return None
    found = [tensor(checkpoint, names, name) for name in CONFIDENCE_HEAD]
    shapes = [list(part.shape) for part in found if part is not None]
    widths = {False: [hidden], True: [hidden + rank], None: [hidden, hidden + rank]}[both]
    accepted = [[[1, width], [1]] for width in widths]
    floats = all(part.dtype in ("BF16", "F16", "F32", "F64") for part in found if part is not None)
    if shapes not in accepted or not floats:
        raise ExportError(
            "The confidence head has another shape or type.",
            where=f"{checkpoint.folder}: {names(CONFIDENCE_HEAD[0])}; {sections.place('confidence_head_with_markov')}",
            found=" and ".join(f"{part.dtype} {list(part.shape)}" for part in found if part is not None),
            accepted=f"{' or '.join(f'[1, {width}]' for width in widths)}, and [1], floating point",
            fix="Get weights and config.json from one release.",
        )
    return shapes[0][1] if shapes else None
