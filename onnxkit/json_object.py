"""JSON files read with their types checked, so that a wrong value is a message that names its key."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxkit.errors import ExportError

_MISSING: Any = object()


class _Twice(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once each. Of a key that stands twice, programs take the one or the other."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return data


def load_json(path: Path, *, once: bool = False) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: The file.
        once: Whether a key that stands twice in one object is refused.

    Raises:
        ExportError: The file is missing, unreadable, no JSON, or holds something other than an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once if once else None)
    except OSError as error:
        raise ExportError(
            "A file cannot be read.",
            where=path,
            found=error.strerror,
            accepted="a file that you may read",
            fix="Check that it is there, and its permissions.",
        ) from error
    except _Twice as error:
        raise ExportError(
            "A key stands twice in one object.",
            where=path,
            found=error,
            accepted="each key once",
            fix="Remove the one that the model was not trained with.",
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ExportError(
            "A file is not valid JSON.",
            where=path,
            found=error,
            accepted="JSON in UTF-8",
            fix="Mend the file, or get it again from where the checkpoint comes from.",
        ) from error
    if not isinstance(data, dict):
        raise ExportError(
            "A JSON file has the wrong shape.",
            where=path,
            found=kind(data),
            accepted="an object {...}",
            fix="Mend the file, or get it again from where the checkpoint comes from.",
        )
    return data


class JsonObject:
    """An object of a JSON file with its place. ``null`` is absence; every read is checked.

    Args:
        data: The object.
        where: Its place as shown in messages, such as ``config.json: text_config``.
    """

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def place(self, key: str) -> str:
        """Where a key stands, for messages."""
        separator = "." if ": " in self.where else ": "
        return f"{self.where}{separator}{key}"

    def error(self, key: str, accepted: object, fix: str | None = None) -> ExportError:
        """The error that says that a key's value is not acceptable, or that the key is missing."""
        if key in self:
            return ExportError(
                "A value is not acceptable.",
                where=self.place(key),
                found=json.dumps(self.data[key]),
                accepted=accepted,
                fix=fix or f"Correct {key}.",
            )
        return ExportError(
            "A key is missing.", where=self.place(key), found="nothing", accepted=accepted, fix=fix or f"Add {key}."
        )

    def integer(self, key: str, *, minimum: int = 1, maximum: int | None = None, default: Any = _MISSING) -> Any:
        """A whole number in a range."""
        limit = f" up to {maximum}" if maximum is not None else ""
        accepted = f"a whole number from {minimum}{limit}"
        value = self._get(key, accepted, default)
        if key not in self:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, accepted)
        if maximum is not None and value > maximum:
            raise self.error(key, accepted)
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
        """A string, one of ``choices`` where they are given."""
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
        return self._list(key, "a list of whole numbers", int, default)

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them, as a tuple; empty where the key is absent."""
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
        return JsonObject(self.data[key], self.place(key))

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
