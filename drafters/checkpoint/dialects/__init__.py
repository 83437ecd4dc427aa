"""The producers of drafters, each with its file: what it writes differently. Adding one is adding a file here.

Who made a checkpoint is decided by the tensors first, where a name is one producer's alone, then by ``config.json``.
"""

from __future__ import annotations

from drafters.checkpoint.dialects import automodel, deepspec, modelopt, specforge, speculators, torchspec, verl, zlab
from drafters.checkpoint.dialects.dialect import Dialect
from drafters.checkpoint.keys import COMMON
from onnxkit.json_object import JsonObject
from onnxkit.key_table import table

# In the order in which they are asked: those with the surer marks first.
_ORDER = (speculators, verl, torchspec, deepspec, modelopt, specforge, automodel, zlab)
DIALECTS = tuple(module.DIALECT for module in _ORDER)

# Who follows the common rules without a mark of its own.
UNKNOWN = Dialect(name="an unknown producer", homes="any section", claims=lambda _: None)

# What becomes of each key, whoever wrote it: files are converted, and keep keys of those before.
KEYS = table(COMMON, (key for dialect in DIALECTS for key in dialect.keys))


def recognise(config: JsonObject, names: list[str]) -> tuple[Dialect, str]:
    """Who wrote a drafter, and the reason to think so.

    Args:
        config: ``config.json``.
        names: The names of the stored tensors.

    Raises:
        ExportError: A key that is looked at has a value of another type.
    """
    for dialect in DIALECTS:
        if name := dialect.marked(names):
            return dialect, f"the tensor {name}"
    for dialect in DIALECTS:
        if reason := dialect.claims(config):
            return dialect, reason
    return UNKNOWN, "nothing in it is one producer's alone"
