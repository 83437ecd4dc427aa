"""What makes one producer's checkpoints different from another's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key


def _nothing(_: Family) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Dialect:
    """One producer's way of writing a drafter.

    Attributes:
        name: The producer.
        homes: Where it keeps a drafter's own keys, in words.
        marks: Patterns of stored names that no other producer has.
        claims: Tells from ``config.json`` whether this producer wrote it: the reason, or None.
        prefixes: What may stand before every name.
        aliases: Beginnings of names that it uses for other ones, with these.
        renames: Keys that mean something else than elsewhere, with the names of what they mean.
        keys: Further keys that it alone writes.
        defaults: What its own writer leaves out where it has the default, by kind of drafter.
        one_bound: Whether it trains all rows of a block with the window of the anchor's row.
        theta_in_doubt: What to say of a rotary base that its exporter may have got wrong, by kind of drafter.
        unsaid_window: What to say where no layer slides, since its exporter may have left the window out.
        normed_last_tap: Whether it captures the output of the target's last layer behind the final norm.
    """

    name: str
    homes: str
    claims: Callable[[JsonObject], str | None]
    marks: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    defaults: Callable[[Family], Mapping[str, Any]] = _nothing
    one_bound: bool = False
    theta_in_doubt: Mapping[Family, str] = field(default_factory=dict)
    unsaid_window: str | None = None
    normed_last_tap: bool = False

    def marked(self, names: list[str]) -> str | None:
        """The first of some stored names that only this producer has."""
        patterns = [re.compile(mark) for mark in self.marks]
        return next((name for name in names if any(pattern.search(name) for pattern in patterns)), None)


def architecture(config: JsonObject) -> str:
    """The first of the architectures that a configuration names; empty where it names none."""
    names = config.strings("architectures", default=())
    return str(names[0]) if names else ""


def any_key(config: JsonObject, *names: str) -> str | None:
    """The place of the first of some keys, at the top level or in a section of the drafter's own."""
    sections = [JsonObject(data, config.place(name)) for name, data in config.data.items() if isinstance(data, dict)]
    places = [section.place(name) for section in (*sections, config) for name in names if name in section]
    return places[0].split(": ", 1)[-1] if places else None
