"""The export's command line: ``python -m builder`` and ``draftsmith export``."""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from builder import peer_options
from builder.option_table import OPTIONS, parse_extra_options
from builder.options import PRECISIONS, BuildOptions
from builder.parser import Parser, folder, path
from onnxkit import __version__
from onnxkit.errors import ExportError, system_error
from onnxkit.progress import Loudness, loudness
from onnxkit.systems import needs_locks
from onnxkit.terminal import discard, standard_streams
from onnxkit.text import escaped
from onnxkit.weights.misfits import check_folders

_USAGE_ERROR = 2
_BUG = 70
_BROKEN_PIPE = 128 + 13  # SIGPIPE, by its number: Windows has no such name


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the export's flags. Their names are those of onnxruntime-genai's own builder."""
    pairs = "; ".join(f"{provider}: {', '.join(PRECISIONS[provider])}" for provider in PRECISIONS)
    parser.add_argument(
        "-i", "--input", type=path, metavar="FOLDER", help="checkpoint folder: config.json and safetensors"
    )
    parser.add_argument(
        "-m",
        "--model_name",
        metavar="NAME",
        help="instead of -i: a repository on the Hub, such as Qwen/Qwen3.5-4B, or owner/name@REVISION; "
        "it is judged by its headers before weights are downloaded, and no code from it is loaded",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=folder,
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
        type=folder,
        metavar="FOLDER",
        help="where what comes from the Hub is kept (default: the Hub's own cache)",
    )
    parser.add_argument(
        "--extra_options",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="see below; given more than once, all of them hold",
    )
    add_loudness(
        parser,
        "print errors only: no progress, no summary, no notes",
        "print each step to stderr: what is opened, planned, fetched, written, layer by layer",
    )


def add_loudness(parser: argparse.ArgumentParser, quiet: str, verbose: str) -> None:
    """Declare -q and -v, with what they do as their help."""
    flags = parser.add_mutually_exclusive_group()
    flags.set_defaults(loudness=Loudness.NORMAL)
    for names, level, text in (
        (("-q", "--quiet"), Loudness.QUIET, quiet),
        (("-v", "--verbose"), Loudness.VERBOSE, verbose),
    ):
        flags.add_argument(*names, dest="loudness", action="store_const", const=level, help=text)


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
    check_folders(i=options.input)
    needs_locks("An export")
    from builder.export import export  # here, so that --help and mistakes in flags need not wait for the ONNX libraries

    try:
        with loudness(arguments.loudness):
            report = export(options)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("Interrupted; the output folder is as it was.") from error
    if arguments.loudness is Loudness.QUIET:
        return
    print(report)
    for note in peer_options.notes(arguments.extra_options):
        print(f"Note: {note}")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m builder``."""
    return guarded(lambda: run_export(_parser().parse_args(argv)))


def guarded(command: Callable[[], int | None]) -> int:
    """Run a command; give its exit status.

    A user's mistake, and what the system reports, are printed as a block. A bug keeps its traceback.
    """
    # A job that is cancelled gets SIGTERM, a terminal that is closed sends SIGHUP. What is ignored (nohup) stays so.
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in signals}
    previous = {number: handler for number, handler in previous.items() if handler is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, _terminated)
    try:
        with standard_streams():
            return _status(command)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _status(command: Callable[[], int | None]) -> int:
    try:
        try:
            status = command() or 0
        except SystemExit as end:  # after --help and --version
            if end.code:
                raise
            status = 0
        sys.stdout.flush()  # here, where it can still be told that it fails
        return status
    except ExportError as error:
        return _ended(_USAGE_ERROR, f"error: {error}")
    except BrokenPipeError:  # whoever read the output has gone, as head does
        return _ended(_BROKEN_PIPE)
    except OSError as error:
        where = "files that this command reads or writes; the system does not say which"
        return _ended(_USAGE_ERROR, f"error: {system_error(error, where)}")
    except MemoryError:
        return _ended(_USAGE_ERROR, f"error: {_no_memory()}")
    except KeyboardInterrupt as error:
        return _ended(128 + signal.SIGINT, str(error) or "Interrupted.")
    except Exception:
        return _ended(_BUG, escaped(traceback.format_exc().rstrip(), keep="\n"))


def _ended(status: int, message: str | None = None) -> int:
    """Print the message and give the exit status. Buffered standard output is still written if possible."""
    if message:
        print(message, file=sys.stderr)
    try:
        sys.stdout.flush()
    except (ExportError, OSError):
        discard(sys.stdout)
    return status


def _no_memory() -> ExportError:
    return ExportError(
        "There is not enough memory.",
        where="this machine, or a limit on this process (ulimit -v, a container's)",
        found="no more memory",
        accepted="0.6 GB for an export, whatever the size of the model",
        fix="End other programs, or raise the limit.",
    )


def _terminated(number: int, _: FrameType | None) -> NoReturn:
    """Leave by an exception, so that staging and other temporary folders are removed."""
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
