"""Write docs/producers.md from the code that reads checkpoints: python -m scripts.make_producer_table [--check]"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from builder.families import FAMILIES
from drafters.checkpoint import conventions
from drafters.checkpoint.dialects import DIALECTS, KEYS
from drafters.checkpoint.keys import COMMON
from drafters.checkpoint.refused import REFUSED
from onnxkit.key_table import Key, Table, Use, short

PAGE = Path(__file__).parent.parent / "docs" / "producers.md"

CONVENTIONS: dict[str, Callable[..., object]] = {
    "Taps": conventions.target_layers,
    "The last layer's tap": conventions.last_tap,
    "The anchor's row": conventions.anchor_predicts,
    "Block size": conventions.block_size,
    "Mask token": conventions.mask_token,
    "Windows and causality": conventions.layers,
    "Rotary embedding": conventions.rotary,
    "Vocabulary": conventions.draft_vocabulary,
}

INTRODUCTION = """# Producers and keys

This page is made from the code by `scripts/make_producer_table.py`; a test sees that it is up to date.
`draftsmith inspect FOLDER` says the same of one checkpoint.

Each key of a config is honoured, checked against something, known to have no effect on the graph, or refused. A key
that is none of these is refused in a section that shapes the drafter (`dflash_config`, `dspark_config`,
`transformer_layer_config`, the rotary sections) and in a target's `text_config`; at the top level it is named in
a note. A key may stand in any section of a drafter's; where two sections hold it, they must agree. `null` is
absence. Every tensor is read, left out on purpose, or an error.

The kind of a drafter, and who made it, are told by the tensors first, then by the config; the decision is the first
note of an export.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRODUCTION,
            *_producers(),
            *_conventions(),
            *_refused(),
            *_keys("A drafter's keys", KEYS),
            *(line for family in FAMILIES for line in _keys(f"A {family.title} target's keys", family.keys)),
        ]
    )


def _producers() -> Iterator[str]:
    yield "## Producers\n"
    yield "| producer | its own keys | told by | names | keys that it alone has |"
    yield "|---|---|---|---|---|"
    for dialect in DIALECTS:
        names = [f"`{alias}*` for `{name}*`" for alias, name in dialect.aliases.items()]
        names += [f"prefix `{prefix}`" for prefix in dialect.prefixes]
        told = [f"tensors `{mark}`".replace("|", "\\|") for mark in dialect.marks]
        keys = [f"`{key.name}`" for key in dialect.keys]
        keys += [f"`{key}` means `{meaning}`" for key, meaning in dialect.renames.items()]
        cells = [dialect.name, dialect.homes, ", ".join([*told, "its config"]), ", ".join(names), ", ".join(keys)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _conventions() -> Iterator[str]:
    yield "## What they disagree about\n"
    for title, function in CONVENTIONS.items():
        text = inspect.getdoc(function) or ""
        yield f"### {title}\n"
        yield f"```\n{text.split('Raises:')[0].rstrip()}\n```\n"


def _refused() -> Iterator[str]:
    yield "## Drafters that are known and not taken\n"
    yield "| drafter | why | told by |"
    yield "|---|---|---|"
    for kind in REFUSED:
        told = [*kind.tensors, *kind.architectures, *kind.types, *kind.keys]
        yield f"| {kind.name} | {kind.why} | {', '.join(f'`{name}`' for name in told)} |"
    yield ""


def _keys(title: str, keys: Table) -> Iterator[str]:
    yield f"## {title}\n"
    for use in (Use.HONOURED, Use.CHECKED, Use.REFUSED):
        yield f"### {use.value.capitalize()}\n"
        heads = {
            Use.HONOURED: "| key | what it changes | where it is absent |",
            Use.CHECKED: "| key | against | |",
            Use.REFUSED: "| key | what it would ask for | values that pass |",
        }
        yield heads[use]
        yield "|---|---|---|"
        for key in keys.values():
            if key.use is use:
                yield f"| `{key.name}` | {key.says}{_only(key)} | {_values(key)} |"
        yield ""
    yield f"### {Use.NO_EFFECT.value.capitalize()}\n"
    reasons: dict[str, list[str]] = {}
    for key in keys.values():
        if key.use is Use.NO_EFFECT:
            reasons.setdefault(key.says, []).append(f"`{key.name}`")
    for reason, names in reasons.items():
        yield f"- {reason}: {', '.join(names)}"
    yield ""


def _only(key: Key) -> str:
    return f" (of {' and '.join(key.families)} only)" if key.families else ""


def _values(key: Key) -> str:
    return " or ".join(short(value) for value in (key.absent if key.use is Use.HONOURED else key.accepted))


def main() -> None:
    """Write the page, or see that it is up to date."""
    assert {key.name for key in COMMON} <= set(KEYS)
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
