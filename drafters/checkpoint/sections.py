"""One view of a drafter's configuration, whichever sections its producer keeps the keys in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drafters.checkpoint.dialects import KEYS
from drafters.checkpoint.dialects.dialect import Dialect
from drafters.checkpoint.keys import BACKBONE_SECTION, NESTED_SECTION, OWN_SECTIONS, SECTIONS, SHAPING_SECTIONS
from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject, disagreement
from onnxkit.key_table import Use, refuse_unknown, same, short, unknown_notes

_ROPE = ("rope_parameters", "rope_scaling")


class ConfigSections(JsonObject):
    """The keys of all sections as one object; each message names the place that a value came from.

    Where a key stands in two sections, both must agree, unless it has no effect.

    Attributes:
        parts: The sections and the top level.
        origins: Where each key stands.
        defaults: The keys that the producer's writer left out where they have their defaults.
        notes: Keys that are not known, and left without effect.

    Args:
        config: ``config.json``.
        dialect: Who wrote it.
        family: The kind of drafter.

    Raises:
        ExportError: A section is no object, a key is not known, or two sections disagree.
    """

    def __init__(self, config: JsonObject, dialect: Dialect, family: Family) -> None:
        super().__init__({}, config.where, config.limits)
        self.config = config
        shaping = [config.section(name) for name in SHAPING_SECTIONS if name in config]
        loose = [config, *([config.section(NESTED_SECTION)] if NESTED_SECTION in config else [])]
        self.parts = [*shaping, *loose]
        self.origins: dict[str, str] = {}
        self.defaults: set[str] = set()
        for section in shaping:
            refuse_unknown(section, [name for name in KEYS if name not in SECTIONS])
        self.notes = [note for section in loose for note in unknown_notes(section, KEYS)]
        for section in self.parts:
            self._take(section, dialect.renames)
        for key, value in dialect.defaults(family).items():
            if key not in self and not any(key in data for data in self._rope_sections()):
                self.defaults.add(key)
                self.data[key], self.origins[key] = (
                    value,
                    f"{key}, left out: the default of {dialect.name}, {short(value)}",
                )

    def _rope_sections(self) -> Iterator[dict[str, Any]]:
        """The rotary sections, and the parts that some of them have for each kind of layer."""
        sections = [data for name in _ROPE if isinstance(data := self.data.get(name), dict)]
        yield from sections
        yield from (data for section in sections for data in section.values() if isinstance(data, dict))

    def _take(self, section: JsonObject, renames: Mapping[str, str]) -> None:
        for written, value in section.data.items():
            key = renames.get(written, written)
            if value is None or written in SECTIONS or key not in KEYS:
                continue
            place = section.place(written)
            if key not in self:
                self.data[key], self.origins[key] = value, place
            elif KEYS[key].use is not Use.NO_EFFECT and not same(self.data[key], value):
                raise disagreement(self.origins[key], place, short(self.data[key]), short(value))

    def place(self, key: str) -> str:
        """Where a key stands; for a missing one, where it is expected."""
        if key in self.origins:
            return self.origins[key]
        own = key in KEYS and KEYS[key].own
        wanted = OWN_SECTIONS if own else (BACKBONE_SECTION,)
        for name in wanted:
            if name in self.config:
                return self.config.section(name).place(key)
        return self.config.place(key)

    def factor(self, key: str) -> float | None:
        """A number to multiply with; None if it is 1 or absent."""
        value = self.number(key, default=None)
        return None if value == 1.0 else value

    def first_of(self, *names: str) -> str | None:
        """The first of some keys that is present."""
        return next((name for name in names if name in self), None)

    def agreed(self, values: Mapping[str, Any]) -> Any:
        """The one value of several keys that mean the same; None if none of them says anything.

        Args:
            values: What each key says, None if it says nothing.

        Raises:
            ExportError: Two of them disagree.
        """
        said = {key: value for key, value in values.items() if value is not None}
        for (first, value), (second, other) in zip(list(said.items())[:-1], list(said.items())[1:], strict=True):
            if value != other:
                raise disagreement(self.place(first), self.place(second), short(value), short(other))
        return next(iter(said.values()), None)


def rope_view(sections: ConfigSections, kinds: set[str]) -> JsonObject:
    """The same object with the one rotary embedding that all layers share.

    Newer configurations may hold one entry for each kind of layer; those of the kinds in use must agree.

    Raises:
        ExportError: A section is no object, or two kinds of layers turn differently.
    """
    data = dict(sections.data)
    for name in _ROPE:
        if name not in sections:
            continue
        section = sections.section(name)
        entries = {
            kind: section.section(kind) for kind in section.data if kind.endswith("_attention") and kind in section
        }
        if not entries:
            continue
        used = {kind: entry for kind, entry in entries.items() if kind in kinds}
        if not used:
            raise sections.error(name, f"an entry for {' and '.join(sorted(kinds))}")
        if len(used) < len(kinds) or len(entries) < len([key for key in section.data if key in section]):
            missing = sorted(kinds - set(used)) or sorted(set(section.data) - set(entries))
            raise sections.error(
                name, f"entries for each kind of layer and nothing else, not {', '.join(missing)} apart"
            )
        (first, entry), *others = used.items()
        for kind, other in others:
            if not same(entry.data, other.data):
                raise disagreement(section.place(first), section.place(kind), short(entry.data), short(other.data))
        data[name] = entry.data
    return _View(data, sections)


class _View(JsonObject):
    def __init__(self, data: dict[str, Any], sections: ConfigSections) -> None:
        super().__init__(data, sections.where, sections.limits)
        self.sections = sections

    def place(self, key: str) -> str:
        """Where the whole object has it."""
        return self.sections.place(key)
