"""The kinds of block drafters, by two names: what their trainers call them, and what the runtime runs them as."""

from __future__ import annotations

from enum import StrEnum


class Family(StrEnum):
    """What a drafter is, as its trainers call it.

    ============ ========== ================== ====================
    member       label      its options begin  beside the backbone
    ============ ========== ================== ====================
    ``DFLASH``   DFlash     ``dflash2_``       nothing
    ``DFLASH2``  DFlash 2   ``dflash2_``       convolutions, a candidate selector
    ``DSPARK``   DSpark     ``dspark_``        a Markov head
    ============ ========== ================== ====================
    """

    DFLASH = "dflash"
    DFLASH2 = "dflash2"
    DSPARK = "dspark"

    @property
    def label(self) -> str:
        """What to call it in messages."""
        return {Family.DFLASH: "DFlash", Family.DFLASH2: "DFlash 2", Family.DSPARK: "DSpark"}[self]

    @property
    def option_prefix(self) -> str:
        """What the names of its options begin with; a plain DFlash drafter has those of DFlash 2."""
        return "dspark" if self is Family.DSPARK else "dflash2"


class RuntimeKind(StrEnum):
    """What the runtime runs a drafter as: the name of its section in ``genai_config.json`` and of its graph's file.

    The runtime tells its two kinds apart by the anchor's row. A plain DFlash drafter runs as a DFlash 2 one whose pairs
    all score zero.
    """

    DFLASH2 = "dflash2"
    DSPARK = "dspark"

    @classmethod
    def of(cls, *, anchor_predicts: bool) -> RuntimeKind:
        """The kind of a drafter whose anchor row predicts, or does not."""
        return cls.DSPARK if anchor_predicts else cls.DFLASH2
