"""Where two files differ: protobuf messages field by field, JSON key by key. Lines to print, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

# What tells the elements of a list apart, if they have it.
_KEYS = ("name", "key", "domain")


def message_differences(found: Message, wanted: Message, where: str = "") -> Iterator[str]:
    """The fields of a message that are not as they should be; elements with names are matched by name."""
    if found == wanted:
        return
    some = False
    for field in wanted.DESCRIPTOR.fields:
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        place = f"{where}.{field.name}" if where else field.name
        if a == b and (field.is_repeated or found.HasField(field.name) == wanted.HasField(field.name)):
            continue
        some = True
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            yield f"{place} is {_shown(a)}, would be {_shown(b)}"
        elif field.is_repeated:
            yield from _list_differences(a, b, place)
        else:
            yield from message_differences(a, b, place)
    if not some:
        yield f"{where or 'the file'} has fields that are not of ONNX"


def _list_differences(found: Sequence[Message], wanted: Sequence[Message], where: str) -> Iterator[str]:
    ours, theirs = _by_key(wanted), _by_key(found)
    if ours is None or theirs is None:
        if len(found) != len(wanted):
            yield f"{where} has {len(found)} elements, would have {len(wanted)}"
        for place, (a, b) in enumerate(zip(found, wanted, strict=False)):
            yield from message_differences(a, b, f"{where}[{place}]")
        return
    yield from (f"{where}[{key}] is missing" for key in ours if key not in theirs)
    yield from (f"{where}[{key}] should not be there" for key in theirs if key not in ours)
    for key, b in ours.items():
        if key in theirs:
            yield from message_differences(theirs[key], b, f"{where}[{key}]")
    both = [key for key in ours if key in theirs]
    if both != [key for key in theirs if key in ours]:
        yield f"{where} is in another order"


def _by_key(elements: Sequence[Message]) -> dict[str, Message] | None:
    """Elements by what tells them apart; None if nothing does."""
    for name in _KEYS:
        if all(name in element.DESCRIPTOR.fields_by_name for element in elements):
            keys = [str(getattr(element, name)) for element in elements]
            if len(set(keys)) == len(keys):
                return dict(zip(keys, elements, strict=True))
    return None


def json_differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    """The keys that are not as they should be. Here a number is not a truth value, and 1.0 is not 1."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        start = f"{where}." if where else ""
        for key, value in wanted.items():
            if key in found:
                yield from json_differences(found[key], value, f"{start}{key}")
            else:
                yield f"{start}{key} is missing, would be {_shown(value)}"
        yield from (f"{start}{key} should not be there: {_shown(found[key])}" for key in found if key not in wanted)
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
            yield from json_differences(a, b, f"{where}[{place}]")
    elif type(found) is not type(wanted) or found != wanted:
        yield f"{where} is {_shown(found)}, would be {_shown(wanted)}"


def _shown(value: Any) -> str:
    """A value on one line, without control characters."""
    text = f"{len(value)} bytes" if isinstance(value, bytes) and len(value) > 16 else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
