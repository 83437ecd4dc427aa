"""What a drafter's folder holds: its kind, its producer, the names of its tensors, and its configuration's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drafters.checkpoint.dialects import DIALECTS, KIND_KEYS, recognise
from drafters.checkpoint.dialects.dialect import Dialect, architecture
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.markov import CONFIDENCE_HEAD
from drafters.checkpoint.names import MAP, MASK, DraftNames, draft_names
from drafters.checkpoint.refused import refuse_known
from drafters.checkpoint.sections import ConfigSections
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


@dataclass(frozen=True)
class Identity:
    """What a drafter's folder holds, and how that was determined.

    Attributes:
        family: Its kind.
        family_reason: What the kind was told by.
        dialect: The producer.
        dialect_reason: What the producer was told by.
        names: The names of the tensors.
        sections: The keys of the configuration.
    """

    family: Family
    family_reason: str
    dialect: Dialect
    dialect_reason: str
    names: DraftNames
    sections: ConfigSections

    def __str__(self) -> str:
        return f"{self.family.label} by {self.family_reason}; from {self.dialect.name} by {self.dialect_reason}"

    @property
    def left_out(self) -> Mapping[str, str]:
        """The stored tensors that no graph of this drafter reads, each with the reason why."""
        left_out = dict(self.names.left_out)
        if self.family == Family.DSPARK:
            why = "the confidence head, which the runtime has no use for"
            left_out |= {self.names(name): why for name in CONFIDENCE_HEAD if name in self.names}
        if MAP in self.names and MASK in self.names:
            left_out[self.names(MASK)] = f"a mask of the vocabulary, which says the same as {self.names(MAP)}"
        return left_out


def identity(checkpoint: Checkpoint) -> Identity:
    """Determine the kind and the producer, from the tensors first, and find the keys.

    Raises:
        ExportError: The kind is not supported, a key is not known, or two places disagree.
    """
    names = draft_names(checkpoint)
    family, why = family_and_reason(checkpoint, names)
    dialect, reason = recognise(checkpoint.config, list(checkpoint.tensors))
    return Identity(family, why, dialect, reason, names, ConfigSections(checkpoint.config, dialect, family))


def family_and_reason(checkpoint: Checkpoint, names: DraftNames) -> tuple[Family, str]:
    """The kind, and what it was determined by.

    ============================================================ ===========
    tensors                                                      kind
    ============================================================ ===========
    ``candidate_selector.*``, ``*.attention_conv.*``             DFlash 2
    ``markov_w1``                                                DSpark
    ``fc``, ``hidden_norm`` only, an architecture of DeepSpec's  DSpark without a Markov head
    ``fc``, ``hidden_norm`` only, a key says ``dspark``          DSpark without a Markov head, or it is missing
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
    stored, named = names("fc.weight"), architecture(config)
    bare = {name: dialect.bare for dialect in DIALECTS for name in dialect.architectures.get(dialect.bare, ())}
    if bare.get(named, Family.DFLASH) != Family.DFLASH:
        return bare[named], f"the tensor {stored} and the architecture {named}, without a Markov head"
    for kind in (Family.DSPARK, Family.DFLASH2):
        for section in (config.data, *(data for data in config.data.values() if isinstance(data, dict))):
            for key in KIND_KEYS:
                if section.get(key) == kind:
                    return kind, f"the key {key}, {kind}"
    if "markov_rank" in config and named not in bare:
        plain = next(name for name, kind in bare.items() if kind == Family.DFLASH)
        other = next(name for name, kind in bare.items() if kind != Family.DFLASH)
        raise config.error(
            "architectures",
            f"{other}, whose anchor's row predicts, or {plain}: without a Markov head, nothing else tells",
            "Get config.json again from where the drafter comes from.",
        )
    return Family.DFLASH, f"the tensor {stored}, without the tensors of another kind"
