"""The export's command line: ``python -m builder`` and ``draftsmith export``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from builder.option_table import OPTIONS, parse_extra_options
from builder.options import PRECISIONS, BuildOptions
from onnxkit import __version__
from onnxkit.errors import ExportError, did_you_mean

_USAGE_ERROR = 2


class _Once(argparse.Action):
    """Keeps a flag's value and refuses a second one that differs. argparse itself drops the first in silence."""

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
    """A parser whose errors look like all others of this tool."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        flag = message.removeprefix("unrecognized arguments: ").split("=")[0].split(" ")[0]
        flags = [flag for action in self._actions for flag in action.option_strings]
        hint = did_you_mean(flag, flags) if message.startswith("unrecognized") else None
        raise ExportError(
            "The command line is not understood.",
            where=self.prog,
            found=message,
            accepted=" ".join(self.format_usage().removeprefix("usage: ").split()),
            fix=hint or f"See {self.prog} --help.",
        )


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the export's flags. Their names are those of onnxruntime-genai's own builder."""
    pairs = "; ".join(f"{provider}: {', '.join(PRECISIONS[provider])}" for provider in PRECISIONS)
    parser.add_argument(
        "-i", "--input", type=Path, metavar="FOLDER", help="checkpoint folder: config.json and safetensors"
    )
    parser.add_argument(
        "-m",
        "--model_name",
        metavar="NAME",
        help="instead of -i: a repository on the Hub, such as Qwen/Qwen3.5-4B; no code from it is loaded",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="folder to write: new, empty, or an earlier export, which is replaced as a whole",
    )
    parser.add_argument("-p", "--precision", required=True, help=f"element type of weights and activations ({pairs})")
    parser.add_argument(
        "-e", "--execution_provider", required=True, help=f"where the graph will run: {' or '.join(PRECISIONS)}"
    )
    parser.add_argument(
        "-c",
        "--cache_dir",
        type=Path,
        metavar="FOLDER",
        help="where -m keeps what it downloads (default: the Hub's own cache); without effect with -i",
    )
    parser.add_argument(
        "--extra_options",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="see below; given more than once, all of them hold",
    )


def options_help() -> str:
    """The help text of every ``--extra_options`` key."""
    lines = ["extra options:"]
    for option in OPTIONS:
        lines += [
            f"  {option.name}",
            f"      {option.help}",
            f"      {option.accepted}; default: {option.default}",
        ]
    return "\n".join(lines).replace("%", "%%")


def run_export(arguments: argparse.Namespace) -> None:
    """Check the request, export, and print the summary."""
    options = BuildOptions(
        input=arguments.input,
        model=arguments.model_name,
        cache_dir=arguments.cache_dir,
        output=arguments.output,
        precision=arguments.precision,
        provider=arguments.execution_provider,
        **parse_extra_options(arguments.extra_options),
    )
    from builder.export import export  # here, so that --help and mistakes in flags need not wait for the ONNX libraries

    print(export(options))


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m builder``."""
    return guarded(lambda: run_export(_parser().parse_args(argv)))


def guarded(command: Callable[[], int | None]) -> int:
    """Run a command; give its exit status. A user's mistake is printed as a block, a bug keeps its traceback."""
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        return command() or 0
    except ExportError as error:
        print(f"error: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except BrokenPipeError:  # whoever read the output has gone, as head does; Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("Interrupted; the output folder is as it was.", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminated(number: int, _: FrameType | None) -> NoReturn:
    """A CI job that is cancelled gets SIGTERM: leave by an exception, so that the staging folder is removed."""
    raise SystemExit(128 + number)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m builder",
        description="Export a Qwen 3.5 / 3.6 / 3.8 checkpoint to a folder that onnxruntime-genai runs.",
        epilog=options_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"draftsmith {__version__}")
    add_export_arguments(parser)
    return parser
