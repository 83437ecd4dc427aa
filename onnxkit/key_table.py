"""A closed set of keys: each key of a configuration is honoured, checked, without effect, or refused.

A table says which. A key that is in no table is refused if it could shape the graph, and otherwise named in a note:
nobody notices a key that is silently ignored.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from onnxkit.errors import ExportError, did_you_mean
from onnxkit.json_object import JsonObject
from onnxkit.text import escaped

_TOLD = 50  # the most unknown keys that are named

# Unknown keys: no real config has more of them, or longer ones.
_MOST_UNKNOWN, _LONGEST_UNKNOWN = 500, 200


class Use(Enum):
    """What becomes of a key."""

    HONOURED = "honoured"
    CHECKED = "checked"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


@dataclass(frozen=True)
class Key:
    """One key of a configuration.

    Attributes:
        name: The key.
        use: What becomes of it.
        says: What it changes in the graph if it is honoured; what it is checked against; why it has no effect; or what
            it would change if it is refused.
        fields: The fields of the normalised configuration that it decides, if it is honoured.
        accepted: If it is refused, the values that request nothing and so pass.
        absent: If it is honoured, the values that its absence stands for.
        own: Whether drafter trainers keep it in a section of its own rather than beside the sizes.
        families: The kinds of drafters for which it has a meaning; empty for all. Others may have ``accepted`` values.
    """

    name: str
    use: Use
    says: str
    fields: tuple[str, ...] = ()
    accepted: tuple[Any, ...] = ()
    absent: tuple[Any, ...] = ()
    own: bool = False
    families: tuple[str, ...] = ()


Table = Mapping[str, Key]


def table(*groups: Iterable[Key]) -> dict[str, Key]:
    """One table made of several groups, in which each name occurs once."""
    keys = [key for group in groups for key in group]
    result = {key.name: key for key in keys}
    if len(result) != len(keys):
        names = [key.name for key in keys]
        raise ValueError(f"twice in a table: {sorted({name for name in names if names.count(name) > 1})}")
    return result


def without_effect(names: str, why: str) -> list[Key]:
    """Keys that have no effect on the graph, all for the same reason; ``names`` is separated by spaces."""
    return [Key(name, Use.NO_EFFECT, why) for name in names.split()]


def refuse_unknown(section: JsonObject, known: Iterable[str]) -> None:
    """Refuse a key that is in no table, in a section that shapes the graph.

    Raises:
        ExportError: There is one.
    """
    known = dict.fromkeys(known)
    for key in section.data:
        if key in section and key not in known:
            raise ExportError(
                "A key is not known.",
                where=section.place(key),
                found=short(section.data[key]),
                accepted="keys that Draftsmith honours, checks, or knows to have no effect on the graph",
                fix=did_you_mean(key, list(known)) or f"Remove {key} if the model was not trained with it.",
            )


def unknown_notes(section: JsonObject, known: Iterable[str]) -> list[str]:
    """A note for each key that is in no table, in a section where such a key is no reason to refuse."""
    known = dict.fromkeys(known)
    unknown = _unknown(section, known)
    notes = [
        f"{section.place(key)} is not known and has no effect. {did_you_mean(key, list(known)) or ''}".rstrip()
        for key in unknown[:_TOLD]
    ]
    more = len(unknown) - _TOLD
    return [*notes, f"{section.where}: {more} more keys are not known and have no effect"] if more > 0 else notes


def _unknown(section: JsonObject, known: Container[str]) -> list[str]:
    """The keys that are in no table.

    Raises:
        ExportError: There are more of them, or longer ones, than any config has.
    """
    unknown = [key for key in section.data if key in section and key not in known]
    longest = max(map(len, unknown), default=0)
    if len(unknown) > _MOST_UNKNOWN or longest > _LONGEST_UNKNOWN:
        raise ExportError(
            "The config holds keys that no model's config has.",
            where=section.where,
            found=f"{len(unknown)} keys that are not known, the longest of {longest} characters",
            accepted=f"up to {_MOST_UNKNOWN}, of up to {_LONGEST_UNKNOWN} characters",
            fix="Get config.json from a source that you trust.",
        )
    return unknown


# Words in the names of keys that shape a model's graph.
_SHAPING = (
    "act activation attention attn bias cap causal conv dim embed embedding expert experts factor ffn gate gated head "
    "heads hidden interval kernel kv layer layers linear logit logits mlp moe multiplier norm position proj query "
    "residual rms rope rotary scale scaling sink sinks size softcap softcapping state theta types window"
)
_ASKS_FOR_NOTHING: tuple[Any, ...] = (False, 0, "", [], {})


def settle_unknown(section: JsonObject, known: Iterable[str]) -> list[str]:
    """What becomes of keys that are in no table: one rule for every section.

    A key is refused if it looks as if it shaped the graph: its name is close to that of a known key, or contains one
    of the words that models use for such things, and its value requests something. Any other, such as a name or a
    version that a tool has left, is noted.

    Raises:
        ExportError: There is a key that looks like that.
    """
    known = list(known)
    refused = [
        key
        for key in _unknown(section, known)
        if not one_of(section.data[key], _ASKS_FOR_NOTHING) and _shapes(key, known)
    ]
    if refused:
        refuse_unknown(JsonObject({refused[0]: section.data[refused[0]]}, section.where), known)
    return unknown_notes(section, known)


def _shapes(key: str, known: Iterable[str]) -> bool:
    words = set(re.split(r"[^a-z]+", key.lower()))
    return not words.isdisjoint(_SHAPING.split()) or bool(difflib.get_close_matches(key, list(known), n=1, cutoff=0.85))


def refuse_values(section: JsonObject, keys: Table) -> None:
    """Refuse keys that request something unsupported.

    Raises:
        ExportError: A refused key has a value that requests something.
    """
    for name, key in keys.items():
        if key.use is Use.REFUSED and name in section and not one_of(section.data[name], key.accepted):
            raise refusal(section, key)


def refusal(section: JsonObject, key: Key) -> ExportError:
    """The error for a key that requests something unsupported."""
    return ExportError(
        "The config asks for something that is not built.",
        where=section.place(key.name),
        found=f"{short(section.data[key.name])}: {key.says}",
        accepted=" or ".join(map(short, key.accepted)) or f"no {key.name}",
        fix="Use a release of the model without it.",
    )


def one_of(value: object, accepted: Iterable[object]) -> bool:
    """Whether a JSON value is one of those given; true does not equal 1 here."""
    return any(same(value, other) for other in accepted)


def same(value: Any, other: Any) -> bool:
    """Whether two JSON values are the same; 1 and 1.0 are, true and 1 are not."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(same(a, b) for a, b in zip(value, other, strict=True))
    if isinstance(value, dict) and isinstance(other, dict):
        names = {name for part in (value, other) for name, content in part.items() if content is not None}
        return all(same(value.get(name), other.get(name)) for name in names)
    return bool(value == other)


def short(value: object) -> str:
    """A JSON value as it is written, cut if it is long."""
    text = escaped(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 200 else f"{text[:200]}..."
