"""Completion in bash, zsh and fish, by argcomplete: subcommands, flags, their values, and the keys of --extra_options.

The shell asks the command itself, with ``_ARGCOMPLETE`` set, so the completions are always what the parser knows.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from builder.option_table import OPTIONS
from builder.options import PRECISIONS

SHELLS = ("bash", "zsh", "fish")
COMMAND = "draftsmith"

# How to have it in every new shell.
INSTALLED = {
    "bash": 'eval "$(draftsmith completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(draftsmith completion zsh)" in ~/.zshrc, after compinit',
    "fish": "draftsmith completion fish > ~/.config/fish/completions/draftsmith.fish",
}


def script(shell: str) -> str:
    """What a shell reads once to ask the command for completions."""
    import argcomplete

    return str(argcomplete.shellcode([COMMAND], use_defaults=True, shell=shell))  # type: ignore[attr-defined]


def asked() -> bool:
    """Whether a shell is asking for completions, rather than a user running a command."""
    return "_ARGCOMPLETE" in os.environ


def answer(parser: argparse.ArgumentParser) -> None:
    """Tell the shell what can stand at the cursor, and end the process."""
    import argcomplete

    _prepare(parser)
    argcomplete.autocomplete(parser, always_complete_options="long")


def _prepare(parser: argparse.ArgumentParser) -> None:
    """Set which values each flag takes; flags that are not named here take files, which is argcomplete's default."""
    from argcomplete.completers import DirectoriesCompleter

    values = {
        "precision": _among(name for names in PRECISIONS.values() for name in names),
        "execution_provider": _among(PRECISIONS),
        "extra_options": _extra_options,
        "model_name": _among(()),
        "max_new_tokens": _among(()),
        "block_size": _among(()),
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                _prepare(subcommand)
        elif action.dest in values:
            action.completer = values[action.dest]  # type: ignore[attr-defined]
        elif action.metavar == "FOLDER":
            action.completer = DirectoriesCompleter()  # type: ignore[attr-defined]


def _among(values: Iterable[str]) -> Callable[..., list[str]]:
    found = list(dict.fromkeys(values))
    return lambda **_: found


def _extra_options(prefix: str, **_: Any) -> list[str]:
    """The keys that are not given yet, each with its =; after the =, the values, if they can be listed."""
    name, separator, text = prefix.partition("=")
    if not separator:
        given = {word.partition("=")[0] for word in os.environ.get("COMP_LINE", "").split() if "=" in word}
        return [f"{option.name}=" for option in OPTIONS if option.name not in given]
    option = next((option for option in OPTIONS if option.name == name), None)
    if option is None:
        return []
    if option.name.endswith("_path"):
        from argcomplete.completers import DirectoriesCompleter

        return [f"{name}={folder}" for folder in DirectoriesCompleter()(prefix=text)]
    return [f"{name}={word}" for word in re.split(r" or |; |, ", option.accepted) if _takes(option.parse, word)]


def _takes(parse: Callable[[str], Any], word: str) -> bool:
    if not word.isalpha():
        return False
    try:
        parse(word)
    except ValueError:
        return False
    return True
