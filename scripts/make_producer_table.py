"""Write docs/producers.md from the code that reads checkpoints: python -m scripts.make_producer_table [--check]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from builder.families import FAMILIES
from drafters.checkpoint.dialects import DIALECTS, KEYS
from drafters.checkpoint.dialects.dialect import PREFIXES, Bound, Dialect
from drafters.checkpoint.keys import CAUSAL_KEYS
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.refused import REFUSED
from onnxkit.key_table import Key, Table, Use, short

PAGE = Path(__file__).parent.parent / "docs" / "producers.md"

INTRODUCTION = """# Producers and keys

This page is made from the code by `scripts/make_producer_table.py`; a test sees that it is up to date.
`draftsmith inspect FOLDER` says the same of one checkpoint.
What becomes of a drafter as a whole is on [the page on drafters](drafters.md).

Each key of a config is honoured, checked against something, known to have no effect on the graph, or refused. A key
that is none of these is refused in a section that shapes the drafter (`dflash_config`, `dspark_config`,
`transformer_layer_config`, the rotary sections) and in a target's `text_config`; at the top level it is named in
a note. A key may stand in any section of a drafter's; where two sections hold it, they must agree. `null` is
absence. Every tensor is read, left out on purpose, or an error.

The kind of a drafter, and who made it, are told by the tensors first, then by the config; the decision is the first
note of an export. A key means what its producer means by it, whoever wrote the file, since files are converted and keep
keys; what the absence of a key means depends on who wrote the file.
"""

Columns = dict[str, Callable[[Dialect], str]]


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


def _anchor(dialect: Dialect, family: Family) -> str:
    rule = dialect.anchor
    absent = {True: "predicts", False: "does not predict", None: "as the drafts of a run tell"}[rule.absent[family]]
    return f"as `{rule.key}` says, else {absent}" if rule.key and family in rule.families else absent


def _window(dialect: Dialect) -> str:
    windows = dialect.windows
    size = f"; W is `{windows.size}`" if windows.size else ""
    served = ". Served as p > q - W, for each row" if windows.bound is Bound.BLOCK else ""
    return windows.bound.value + size + served


# What producers disagree about: a title, what there is to say of all, and each producer's way.
CONVENTIONS: dict[str, tuple[str, Columns]] = {
    "Taps": (
        "Layers are never guessed: published formulas are wrong for most releases. The embedding cannot be tapped.",
        {"key: its number n stands for": lambda d: ", ".join(f"`{key}`: {tap.value}" for key, tap in d.taps.items())},
    ),
    "The last layer's tap": (
        "The tap of the target's last layer is the residual stream (`raw`), or what comes behind the final norm "
        "(`normed`). The option `last_tap` says otherwise.",
        {
            "how it captures layers in training": lambda d: d.capture,
            "last layer": lambda d: "`normed`" if d.normed_last_tap else "`raw`",
        },
    ),
    "The anchor's row": (
        "Where it predicts, row j of a block predicts the token at j + 1, else the one at j.",
        {family.label: lambda d, family=family: _anchor(d, family) for family in Family},  # type: ignore[misc]
    ),
    "Block size": (
        "It is never guessed. The option `drafter_block_size` says it where no key does.",
        {"where it stands": lambda d: d.block_size},
    ),
    "Windows and causality": (
        "p is a position that a row at q sees, W the window. Keys of causality: "
        f"{', '.join(f'`{key}`' for key in CAUSAL_KEYS)}. The attention operator bounds a row on its left only: "
        "a block that is not causal must fit into its window, and so must a block that has no window of its own.",
        {
            "layers that slide": lambda d: d.windows.slides,
            "layers that are causal within a block": lambda d: d.windows.causal,
            "what a window shows": _window,
        },
    ),
    "Rotary embedding": (
        "The base is never guessed, and whole heads are rotated: keys of a part of a head were copied from the target.",
        {"where it stands, and its scaling": lambda d: d.rotary},
    ),
    "Vocabulary": (
        "A `draft_vocab_size` above the vocabulary's size is padding. A plain DFlash drafter without tables of its own "
        "fits a target whose vocabulary is padded or trimmed.",
        {"what it predicts": lambda d: d.vocabulary},
    ),
}


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _producers() -> Iterator[str]:
    yield "## Producers\n"
    yield _row("producer", "its own keys", "tensor names that it alone has", "keys that it alone has", "read in")
    yield "|---|---|---|---|---|"
    for dialect in DIALECTS:
        names = [f"`{alias}*` for `{name}*`" for alias, name in dialect.aliases.items()]
        names += [f"`{prefix}` before a name" for prefix in dialect.prefixes]
        keys = [f"`{key.name}`" for key in dialect.keys]
        keys += [f"`{key}` means `{meaning}`" for key, meaning in dialect.renames.items()]
        yield _row(dialect.title, dialect.keeps, ", ".join(names), ", ".join(keys), "; ".join(dialect.sources))
    yield ""
    yield f"Before any name may stand {' or '.join(f'`{prefix}`' for prefix in PREFIXES)}.\n"
    yield "### Architectures\n"
    yield "The names tell the kind only where the tensors do not.\n"
    yield _row("producer", *(family.label for family in Family))
    yield "|---" * (1 + len(Family)) + "|"
    for dialect in DIALECTS:
        cells = [", ".join(f"`{name}`" for name in dialect.architectures.get(family, ())) for family in Family]
        yield _row(dialect.title, *cells)
    yield ""


def _conventions() -> Iterator[str]:
    yield "## What they disagree about\n"
    for title, (text, columns) in CONVENTIONS.items():
        yield f"### {title}\n\n{text}\n"
        yield _row("producer", *columns)
        yield "|---" * (1 + len(columns)) + "|"
        for dialect in DIALECTS:
            yield _row(dialect.name, *(column(dialect) for column in columns.values()))
        yield ""


def _refused() -> Iterator[str]:
    yield "## Drafters that are known but not supported\n"
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only see whether it is up to date (exit status 1: no)")
    if parser.parse_args().check:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
