"""Write docs/from-the-model-builder.md from builder/peer_table.py: python -m scripts.make_peer_table [--check]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from builder.option_table import OPTIONS as OURS
from builder.peer_table import FLAGS, OPTIONS, Fate, PeerOption

PAGE = Path(__file__).parent.parent / "docs" / "from-the-model-builder.md"

INTRODUCTION = f"""# Coming from the model builder

The command line of `python -m onnxruntime_genai.models.builder` (onnxruntime-genai 0.18) has {len(FLAGS)} flags and
{len(OPTIONS)} extra options. `python -m builder` and `draftsmith export` know each of them by name: it does the same,
is accepted with a note where it asks for what happens anyway, or is refused with what it means there and what to do
here. No name is taken for another one that looks like it, and none is ignored.
The options of this tool alone are on the pages of [the packed target](packed-target.md) and of [drafters](drafters.md).

A command for one of these models usually works as it is:

```
python -m onnxruntime_genai.models.builder -i MODEL -o OUT -p bf16 -e cuda --extra_options use_paged_attention=true
python -m builder                          -i MODEL -o OUT -p bf16 -e cuda --extra_options use_paged_attention=true
```

With a drafter, one option is enough, where the other builder wants four that agree:

```
python -m onnxruntime_genai.models.builder -i MODEL -o OUT -p bf16 -e cuda --extra_options use_paged_attention=true \\
    dflash2_path=DRAFTER aux_hidden_state_layers=2,4,6 state_update_capacity=7
python -m builder                          -i MODEL -o OUT -p bf16 -e cuda --extra_options drafter_path=DRAFTER
```

This page is made from the code by `scripts/make_peer_table.py`; a test compares the table with the installed release.
"""

TITLES = {
    Fate.SAME: ("The same here", "what it does", "what differs"),
    Fate.ANYWAY: ("Accepted where they ask for what happens anyway", "what it does there", "for any other value"),
    Fate.LATER: ("Not here yet", "what it does there", "what to do"),
    Fate.OTHER: ("Not for these models", "what it does there", "what to do"),
}


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_defaults(), *_flags(), *_options(), *_beyond()])


def _defaults() -> Iterator[str]:
    yield "## Defaults that differ\n"
    yield "| option | there | here |"
    yield "|---|---|---|"
    ours = {option.name: option.default for option in OURS} | {"--cache_dir": "the Hub's own cache"}
    for option in (*FLAGS, *OPTIONS):
        if option.default:
            yield f"| `{option.name}` | {option.default} | {ours.get(option.name) or _anyway(option)} |"
    yield ""


def _anyway(option: PeerOption) -> str:
    return f"{' or '.join(option.passes)}, always"


def _flags() -> Iterator[str]:
    yield "## Flags\n"
    yield "| flag | what it does there | here |"
    yield "|---|---|---|"
    for flag in FLAGS:
        yield f"| `{flag.name}` | {flag.meaning} | {flag.here if flag.fate is Fate.SAME else f'Not yet. {flag.here}'} |"
    yield ""


def _options() -> Iterator[str]:
    yield "## Extra options\n"
    for fate, (title, meaning, here) in TITLES.items():
        options = [option for option in OPTIONS if option.fate is fate]
        yield f"### {title}\n"
        yield from _table(options, meaning, here, passes=fate is Fate.ANYWAY)


def _table(options: Sequence[PeerOption], meaning: str, here: str, *, passes: bool) -> Iterator[str]:
    yield f"| option | {meaning} |{' accepted |' if passes else ''} {here} |"
    yield f"|---|---|{'---|' if passes else ''}---|"
    for option in options:
        accepted = f" `{'`, `'.join(option.passes)}` |" if passes else ""
        yield f"| `{option.name}` | {option.meaning} |{accepted} {option.here} |"
    yield ""


def _beyond() -> Iterator[str]:
    names = {option.name for option in OPTIONS}
    yield "## What the other builder does not have\n"
    yield "| option | what it does |"
    yield "|---|---|"
    for option in OURS:
        if option.name not in names:
            yield f"| `{option.name}` | {option.help} |"
    yield ""


def main() -> None:
    """Write the page, or see that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only see whether it is up to date (exit status 1: no)")
    if parser.parse_args().check:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
