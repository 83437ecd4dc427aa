"""The producers of drafters, each with its file: what it writes, and what it trains, in another way than others do.

Adding one is adding a file here. Who made a checkpoint is decided by the tensors first, where a name is one producer's
alone, then by ``config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drafters.checkpoint.dialects import automodel, deepspec, modelopt, specforge, speculators, torchspec, verl, zlab
from drafters.checkpoint.dialects.dialect import PREFIXES, Dialect
from drafters.checkpoint.keys import COMMON
from onnxkit.json_object import JsonObject
from onnxkit.key_table import table

# In the order in which they are asked: those with the surer marks first.
_ORDER = (speculators, verl, torchspec, deepspec, modelopt, specforge, automodel, zlab)
DIALECTS = tuple(module.DIALECT for module in _ORDER)

# Who follows the common rules without a mark of its own.
UNKNOWN = Dialect(
    name="an unknown producer", title="an unknown producer", keeps="any section", recognised=lambda _: None
)

# Files are converted from one producer's form to another's, and keep keys of the first. So a key is known, and means
# what its producer means by it, whoever wrote the file. Only what its absence means depends on who wrote the file.
KEYS = table(COMMON, (key for dialect in DIALECTS for key in dialect.keys))
KIND_KEYS = tuple(dict.fromkeys(dialect.kind_key for dialect in DIALECTS if dialect.kind_key))
_PREFIXES = (*PREFIXES, *(prefix for dialect in DIALECTS for prefix in dialect.prefixes))
CONFIDENCE_KEYS = tuple(dict.fromkeys(dialect.confidence_key for dialect in DIALECTS))


def unprefixed(name: str) -> str:
    """A tensor's name without what producers put before names."""
    while found := next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None):
        name = name.removeprefix(found)
    return name


def aliases_of(names: Sequence[str]) -> Mapping[str, str]:
    """The aliases of the producer whose words some stored names use; empty if all names are common."""
    bare = [unprefixed(name) for name in names]
    spoken = (dialect.aliases for dialect in DIALECTS if dialect.aliases)
    return next((aliases for aliases in spoken if any(name.startswith(tuple(aliases)) for name in bare)), {})


def recognise(config: JsonObject, names: Sequence[str]) -> tuple[Dialect, str]:
    """Who wrote a drafter, and the evidence.

    Args:
        config: ``config.json``.
        names: The names of the stored tensors.

    Raises:
        ExportError: A key that is looked at has a value of another type.
    """
    for dialect in DIALECTS:
        marked = (name for name in names if name.startswith(dialect.prefixes) or unprefixed(name) in dialect.marks)
        if name := next(marked, None):
            return dialect, f"the tensor {name}"
    for dialect in DIALECTS:
        if reason := dialect.recognised(config):
            return dialect, reason
    return UNKNOWN, "nothing in it is one producer's alone"
