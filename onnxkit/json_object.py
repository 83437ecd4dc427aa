"""JSON files read with their types checked, so that a wrong value gives a message that names its key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxkit.errors import ExportError, system_errors
from onnxkit.foreign_file import foreign
from onnxkit.text import clipped, escaped, has_surrogates

_MISSING: Any = object()

# What a file may hold. A tokenizer with 250 000 entries has 20 MB and a million parts. A Python object takes up to
# 250 bytes for a part of 2 bytes, so these numbers keep what is read under a gigabyte.
MOST_BYTES, MOST_PARTS, MOST_NESTED, MOST_DIGITS = 50 << 20, 3_000_000, 64, 300

# The largest whole number for a key, unless a smaller limit applies: the runtime counts with 32 bits.
LARGEST = 2**31 - 1

_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class _Twice(ValueError):
    pass


class _TooLarge(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which each key occurs once. If a key occurs twice, programs take one or the other."""
    data = dict(pairs)
    if len(data) < len(pairs):
        seen: set[str] = set()
        raise _Twice(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
    return data


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise _TooLarge(f"a number of {len(text)} digits")
    return int(text)


def parse_json(text: str, *, once: bool) -> Any:
    """What a stranger's text says, within bounds on memory and time.

    Args:
        text: The text, whose size the caller has checked.
        once: Whether a key that occurs twice in one object is refused.

    Raises:
        ValueError: It is not JSON, has too many parts or too long a number, is nested too deeply, or has invalid text.
        RecursionError: It is nested far too deeply.
    """
    if (parts := sum(map(text.count, ",[{"))) > MOST_PARTS:
        raise _TooLarge(f"{parts} lists, objects and commas")
    data = json.loads(text, object_pairs_hook=_once if once else None, parse_int=_integer)
    level = [data]
    for _ in range(MOST_NESTED):
        level = [part for outer in level for part in _parts(outer) if isinstance(part, list | dict)]
    if level:
        raise _TooLarge(f"lists and objects nested more than {MOST_NESTED} deep")
    if _HALF.search(text) and has_surrogates(json.dumps(data, ensure_ascii=False)):
        raise _TooLarge("half of a surrogate pair, such as \\ud800, which is no text")
    return data


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def load_json(path: Path, *, once: bool = False) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: The file.
        once: Whether a key that occurs twice in one object is refused.

    Raises:
        ExportError: The file is missing, unreadable, not JSON, too large to be what it is called, or holds something
            other than an object.
    """
    try:
        data = parse_json(_read(path), once=once)
    except _Twice as error:
        raise ExportError(
            "A key stands twice in one object.",
            where=path,
            found=clipped(escaped(str(error))),
            accepted="each key once",
            fix="Remove the one that the model was not trained with.",
        ) from error
    except _TooLarge as error:
        raise _not_taken(path, error) from error
    except (ValueError, RecursionError) as error:
        raise ExportError(
            "A file is not valid JSON.",
            where=path,
            found=error,
            accepted="JSON in UTF-8",
            fix="Repair the file, or get it again from where the checkpoint comes from.",
        ) from error
    if not isinstance(data, dict):
        raise ExportError(
            "A JSON file has the wrong shape.",
            where=path,
            found=kind(data),
            accepted="an object {...}",
            fix="Repair the file, or get it again from where the checkpoint comes from.",
        )
    return data


def _read(path: Path) -> str:
    with system_errors(path, "a file that you may read"), path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise _TooLarge(f"more than {MOST_BYTES} bytes")
    if error := foreign(path, data):
        raise error
    return data.decode()


def _not_taken(path: Path, found: object) -> ExportError:
    return ExportError(
        "A JSON file exceeds the limits of any real checkpoint.",
        where=path,
        found=found,
        accepted=f"up to {MOST_BYTES >> 20} MiB, {MOST_PARTS} parts, {MOST_NESTED} levels, {MOST_DIGITS} digits; text",
        fix="Get the file again from a source that you trust.",
    )


@dataclass(frozen=True)
class Limit:
    """The largest value that a key may have, whatever else applies to it.

    Attributes:
        most: The number.
        why: What it follows from, to be put after it.
    """

    most: int
    why: str


class JsonObject:
    """An object in a JSON file, with its place. ``null`` means absent; every read is checked.

    Args:
        data: The object.
        where: Its place as shown in messages, such as ``config.json: text_config``.
        limits: The most that whole numbers may be, by key. No number is used before it is checked against them.
    """

    def __init__(self, data: dict[str, Any], where: str, limits: Mapping[str, Limit] | None = None) -> None:
        self.data = data
        self.where = escaped(where)
        self.limits = limits or {}

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def place(self, key: str) -> str:
        """Where a key stands, for messages."""
        separator = "." if ": " in self.where else ": "
        return f"{self.where}{separator}{escaped(key)}"

    def error(self, key: str, accepted: object, fix: str | None = None) -> ExportError:
        """The error that says that a key's value is not acceptable, or that the key is missing."""
        if key in self:
            return ExportError(
                "A value is not acceptable.",
                where=self.place(key),
                found=clipped(json.dumps(self.data[key])),
                accepted=accepted,
                fix=fix or f"Correct {key}.",
            )
        return ExportError(
            "A key is missing.", where=self.place(key), found="nothing", accepted=accepted, fix=fix or f"Add {key}."
        )

    def integer(self, key: str, *, minimum: int = 1, maximum: int | None = None, default: Any = _MISSING) -> Any:
        """A whole number in a range, and within the key's limit."""
        limit = self.limits.get(key, Limit(LARGEST, ""))
        most = limit.most if maximum is None else min(maximum, limit.most)
        accepted = f"a whole number from {minimum}" + (f" up to {most}" if maximum is not None or limit.why else "")
        value = self._get(key, accepted, default)
        if key not in self:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, accepted)
        if value > most:
            why = f" ({limit.why})" if limit.why and most == limit.most else ""
            raise self.error(key, f"a whole number from {minimum} up to {most}{why}")
        return value

    def number(self, key: str, *, above: float = 0.0, maximum: float = math.inf, default: Any = _MISSING) -> Any:
        """A finite number greater than ``above`` and at most ``maximum``."""
        limit = f" and at most {maximum:g}" if maximum != math.inf else ""
        accepted = f"a number above {above:g}{limit}"
        value = self._get(key, accepted, default)
        if key not in self:
            return value
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not above < value <= maximum or not math.isfinite(value):
            raise self.error(key, accepted)
        return float(value)

    def boolean(self, key: str, *, default: Any = _MISSING) -> Any:
        """true or false."""
        value = self._get(key, "true or false", default)
        if key in self and not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def string(self, key: str, *, choices: Sequence[str] = (), default: Any = _MISSING) -> Any:
        """A string; one of ``choices`` if they are given."""
        accepted = " or ".join(choices) if choices else "a string"
        value = self._get(key, accepted, default)
        if key in self and (not isinstance(value, str) or (choices and value not in choices)):
            raise self.error(key, accepted)
        return value

    def strings(self, key: str, *, default: Any = _MISSING) -> Any:
        """A list of strings, as a tuple."""
        return self._list(key, "a list of strings", str, default)

    def integers(self, key: str, *, default: Any = _MISSING) -> Any:
        """A list of whole numbers, as a tuple."""
        values = self._list(key, "a list of whole numbers", int, default)
        if key in self and any(abs(value) > LARGEST for value in values):
            raise self.error(key, f"a list of whole numbers up to {LARGEST}")
        return values

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them, as a tuple; empty if the key is absent."""
        if key not in self:
            return ()
        accepted = f"a token id from 0 to {vocab_size - 1} (vocab_size is {vocab_size}) or a list of them"
        value = self.data[key]
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab_size for i in ids):
            raise self.error(key, accepted)
        return tuple(ids)

    def section(self, key: str) -> JsonObject:
        """The object under a key."""
        if not isinstance(self.data.get(key), dict):
            raise self.error(key, "an object {...}")
        return JsonObject(self.data[key], self.place(key), self.limits)

    def _get(self, key: str, accepted: str, default: Any) -> Any:
        if key in self:
            return self.data[key]
        if default is _MISSING:
            raise self.error(key, accepted)
        return default

    def _list(self, key: str, accepted: str, element: type, default: Any) -> Any:
        value = self._get(key, accepted, default)
        if key not in self:
            return value
        if not isinstance(value, list) or any(not isinstance(v, element) or isinstance(v, bool) for v in value):
            raise self.error(key, accepted)
        return tuple(value)


def kind(value: object) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def disagreement(first: str, second: str, value: object, other: object) -> ExportError:
    """The error that says that two places hold different values where one was meant."""
    return ExportError(
        "Two places of the config disagree.",
        where=f"{first} and {second}",
        found=f"{'nothing' if value is None else value} and {'nothing' if other is None else other}",
        accepted="one value",
        fix="Remove the one that the model was not trained with.",
    )
