"""What an ``--extra_options`` key is: how its value is read, and where it means something."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from drafters.checkpoint.kinds import Family

ANY_DRAFTER = tuple(Family)


def any_of(words: Sequence[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def drafter_of(kinds: Sequence[Family]) -> str:
    """``a DFlash or DFlash 2 drafter``."""
    return f"a {any_of([kind.label for kind in kinds])} drafter"


def written(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class Scope:
    """Where an option means something. Given elsewhere, it is refused.

    Attributes:
        packed: In the packed layout only.
        kinds: Beside a drafter of one of these kinds only; none where it does not depend on a drafter.
        providers: On these execution providers only; none stands for all of them.
        precisions: In these precisions only; none stands for all of them.
    """

    packed: bool = False
    kinds: tuple[Family, ...] = ()
    providers: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The layout or the drafter, in words; empty where it is all the same."""
        if self.kinds:
            return "with a drafter" if self.kinds == ANY_DRAFTER else f"with {drafter_of(self.kinds)}"
        return "packed" if self.packed else ""

    @property
    def pairs(self) -> str:
        """Precisions and providers as flags, ``-p bf16 or fp16 with -e cuda``; empty where any will do."""
        flags = {"-p": self.precisions, "-e": self.providers}
        return " with ".join(f"{flag} {any_of(values)}" for flag, values in flags.items() if values)

    def runs(self, precision: str, provider: str) -> bool:
        """Whether it means something in a precision and on a provider."""
        return precision in (self.precisions or (precision,)) and provider in (self.providers or (provider,))


ANYWHERE = Scope()
PACKED = Scope(packed=True)
# What asks for the packed layout, or implies it: the CPU has no kernels for it, and CUDA none in float32.
PACKED_ITSELF = Scope(providers=("cuda",), precisions=("bf16", "fp16"))


@dataclass(frozen=True)
class Option:
    """One ``--extra_options`` key.

    Attributes:
        parse: Turns the text into a value; raises ValueError if the text is not a valid value.
        accepted: What is accepted, in words.
        default: What holds when the option is not given, in words.
        meaning: One line of meaning, without the scope.
        scope: Where it means something.
        unset: The value that stands for its not being given.
        takes: The kinds of drafter whose folder it names; none where it names none.
        sets: What it sets of a drafter, by a word that options of several kinds share: ``top_k``.
        name: The key.
    """

    parse: Callable[[str], Any]
    accepted: str
    default: str
    meaning: str
    scope: Scope = ANYWHERE
    unset: Any = None
    takes: tuple[Family, ...] = ()
    sets: str = ""
    name: str = ""

    @property
    def help(self) -> str:
        """Its meaning, and where it has one."""
        before = f"{self.scope.title}: " if self.scope.title else ""
        behind = f"; {self.scope.pairs} only" if self.scope.pairs else ""
        return f"{before}{self.meaning}{behind}"


def option(
    parse: Callable[[str], Any],
    accepted: str,
    default: str,
    meaning: str,
    scope: Scope = ANYWHERE,
    *,
    unset: Any = None,
    takes: tuple[Family, ...] = (),
    sets: str = "",
) -> Any:
    """A row of the table: a field of a dataclass, named as the key; ``unset`` is its value where none is given."""
    row = Option(parse, accepted, default, meaning, scope, unset, takes, sets)
    return dataclasses.field(default=unset, metadata={"option": row})


def rows(table: type) -> tuple[Option, ...]:
    """The options of a table, in its order."""
    return tuple(
        dataclasses.replace(field.metadata["option"], name=field.name)
        for field in dataclasses.fields(table)
        if "option" in field.metadata
    )
