"""Which kind of drafter a checkpoint is: its tensors say so, for the names in configurations lie."""

from __future__ import annotations

from drafters.checkpoint.dialects.deepspec import ARCHITECTURE as DEEPSPEC
from drafters.checkpoint.dialects.dialect import architecture
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.names import DraftNames, draft_names
from drafters.checkpoint.refused import refuse_known
from onnxkit.errors import ExportError, listed
from onnxkit.json_object import JsonObject
from onnxkit.weights.checkpoint import Checkpoint

# Parts of tensor names that tell a kind, in the order in which they are looked for.
_MARKS = {
    "candidate_selector.": Family.DFLASH2,
    ".attention_conv.": Family.DFLASH2,
    ".mlp_conv.": Family.DFLASH2,
    "markov_head.": Family.DSPARK,
}


# Names of plain DFlash drafters.
_PLAIN = ("DFlashDraftModel", "Qwen3DFlashDraftModel", "DFlashSpeculator")


def identify(checkpoint: Checkpoint) -> Family:
    """The kind of drafter.

    Raises:
        ExportError: It is another kind, which is named where it is known.
    """
    return kind_and_reason(checkpoint, draft_names(checkpoint))[0]


def kind_and_reason(checkpoint: Checkpoint, names: DraftNames) -> tuple[Family, str]:
    """The kind, and what it was told by.

    ============================================================ ===========
    tensors                                                      kind
    ============================================================ ===========
    ``candidate_selector.*``, ``*.attention_conv.*``             DFlash 2
    ``markov_w1``                                                DSpark
    ``fc``, ``hidden_norm`` only, DeepSpec's architecture        DSpark whose Markov head has rank 0
    ``fc``, ``hidden_norm`` only, a key says ``dspark``          DSpark: of rank 0, or its Markov head is missing
    ``fc``, ``hidden_norm`` only                                 DFlash
    ============================================================ ===========

    Raises:
        ExportError: It is none of these.
    """
    refuse_known(checkpoint, names)
    for mark, kind in _MARKS.items():
        if marked := names.having(mark):
            return kind, f"the tensor {marked[0]}"
    if "fc.weight" not in names and "hidden_norm.weight" not in names:
        raise ExportError(
            "The drafter's folder holds something else.",
            where=checkpoint.folder,
            found=f"no drafter, by its tensors:\n{listed(list(checkpoint.tensors)[:3])}",
            accepted="a DFlash, DFlash 2 or DSpark drafter, with fc.weight and hidden_norm.weight",
            fix="Point the option at the folder of such a drafter.",
        )
    return _without_marks(checkpoint.config, names)


def _without_marks(config: JsonObject, names: DraftNames) -> tuple[Family, str]:
    stored = names("fc.weight")
    if architecture(config) == DEEPSPEC:
        return Family.DSPARK, f"the tensor {stored} and the architecture {DEEPSPEC}, without a Markov head"
    for kind in (Family.DSPARK, Family.DFLASH2):
        for section in (config.data, *(data for data in config.data.values() if isinstance(data, dict))):
            for key in ("speculators_model_type", "projector_type"):
                if section.get(key) == kind:
                    return kind, f"the key {key}, {kind}"
    if "markov_rank" in config and architecture(config) not in _PLAIN:
        raise config.error(
            "architectures",
            f"{DEEPSPEC}, whose anchor's row predicts, or {_PLAIN[0]}: without a Markov head, nothing else tells",
            "Get config.json again from where the drafter comes from.",
        )
    return Family.DFLASH, f"the tensor {stored}, without the tensors of another kind"
