"""Command lines whose mistakes are told like all others of this tool, each by the subcommand that it was made in."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from builder.hub_name import expanded
from builder.option_table import OPTIONS
from builder.peer_options import advice, peer_flags, peer_option, refused_flag
from onnxkit.errors import ExportError, did_you_mean, nearest

_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")  # what argparse takes for a value rather than for a flag
_LONG_DASHES = ("\u2013", "\u2014", "\u2212")  # what word processors and web pages make of -- and -


class _Once(argparse.Action):
    """Keeps a flag's value and refuses a second one that differs. argparse itself silently drops the first."""

    first: tuple[str, object] | None = None

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Store the value."""
        if option_string and self.first and self.first[1] != values:
            raise ExportError(
                "A flag is given twice, with two values.",
                where=option_string,
                found=f"{values} after {self.first[0]} {self.first[1]}",
                accepted="each flag once",
                fix="Remove one of the two.",
            )
        self.first = (option_string, values) if option_string else None
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser whose errors look like all others of this tool.

    argparse says of a command line with a misspelt flag that another is missing, and lets the main parser answer for
    the flags of a subcommand. Here each parser looks at its own flags first.

    Attributes:
        others: The parsers of the subcommands by name, for a flag that belongs to another one.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)
        self.others: Mapping[str, argparse.ArgumentParser] = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what this parser knows; there is nothing else.

        Raises:
            ExportError: There is something else, something is missing, or a value is not taken.
        """
        args = list(sys.argv[1:] if args is None else args)
        for argument, flag in self._flags(args):
            if not self._knows(argument, flag):
                raise self._unknown_flag(argument, flag)
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        stray = message.removeprefix("unrecognized arguments: ")
        fix = f"See {self.prog} --help."
        if stray != message and "=" in stray and self._exports:
            fix = f"Write --extra_options {stray}."
        raise self._not_understood(message, fix)

    def _not_understood(self, found: str, fix: str) -> ExportError:
        return ExportError(
            "The command line is not understood.",
            where=self.prog,
            found=found,
            accepted=" ".join(self.format_usage().removeprefix("usage: ").split()),
            fix=fix,
        )

    @property
    def _exports(self) -> bool:
        return "--extra_options" in self._option_string_actions

    def _flags(self, args: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The arguments that are flags, each with its name, up to a subcommand, which answers for what follows."""
        commands = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        for argument in args:
            if argument == "--" or (commands and not argument.startswith("-")):
                return
            dash = argument.startswith(("-", *_LONG_DASHES)) and len(argument) > 1
            if dash and " " not in argument and not _NUMBER.match(argument):
                yield argument, argument.split("=")[0]

    def _knows(self, argument: str, flag: str) -> bool:
        known = self._option_string_actions
        attached = not argument.startswith("--") and argument[:2] in known  # -pfp16
        return flag in known or (attached and f"-{flag}" not in known)

    def _unknown_flag(self, argument: str, flag: str) -> ExportError:
        known = list(self._option_string_actions)
        name = flag.lstrip("".join(("-", *_LONG_DASHES)))
        written = f"--{name}" if len(name) > 1 else f"-{name}"
        if self._exports and (refused := refused_flag(written)):
            return refused
        fix = did_you_mean(flag, known) or did_you_mean(written, known)
        if self._exports and (near := nearest(written, [*known, *peer_flags()])) and (refused := refused_flag(near)):
            fix = f"Did you mean {near}? {refused.details['to do']}"
        if self._exports and (option := peer_option(name)):
            fix = f"That is an extra option, and means: {option.meaning}. {option.here}"
        elif self._exports and name in {option.name for option in OPTIONS}:
            fix = f"That is an extra option: write --extra_options {name}={argument.partition('=')[2] or 'VALUE'}."
        elif owners := [command for command, other in self.others.items() if written in other._option_string_actions]:
            program = self.prog.split()[0]
            fix = fix or f"That is a flag of {' and of '.join(f'{program} {command}' for command in owners)}."
        return self._not_understood(f"an unknown flag, {flag}", fix or f"See {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        flag, choices = "/".join(action.option_strings) or action.metavar or action.dest, list(action.choices)
        hint = (advice("-e", value, choices) or "").replace("-e ", f"{flag} ") if flag == "--provider" else ""
        raise ExportError(
            "The command line is not understood.",
            where=f"{self.prog} {flag}" if action.option_strings else self.prog,
            found=repr(value),
            accepted=" or ".join(choices),
            fix=(hint or "").replace("-e ", "--provider ")
            or did_you_mean(value, choices)
            or f"See {self.prog} --help.",
        )


def path(text: str) -> Path:
    """The path of an argument. Python takes an empty one for the current folder, which a script whose variable is empty
    does not mean."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty path; write . for the current folder")
    return expanded(text)


def folder(text: str) -> Path:
    """The path of an argument that is a folder, or is to become one."""
    found = path(text)
    if found.exists() and not found.is_dir():
        raise ExportError(
            "The path names a file, where a folder is to be written.",
            where=text,
            found="a file",
            accepted="a folder, or a path where there is nothing yet",
            fix="Name another path, or move the file away.",
        )
    return found


def at_least(smallest: int) -> Any:
    """The type of an argument that is a whole number, and not less than ``smallest``."""

    def whole(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"{text!r}, where a whole number from {smallest} is accepted")
        return int(text)

    return whole
