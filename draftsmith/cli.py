"""The console script ``draftsmith``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from builder.cli import Parser, add_export_arguments, guarded, options_help, run_export
from onnxkit import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """``draftsmith SUBCOMMAND ...``; gives the exit status."""

    def command() -> None:
        arguments = _parser().parse_args(argv)
        arguments.run(arguments)

    return guarded(command)


def _parser() -> Parser:
    parser = Parser(
        prog="draftsmith",
        description="Export Qwen 3.5 / 3.6 / 3.8 checkpoints to folders that onnxruntime-genai runs.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"draftsmith {__version__}")
    subcommands = parser.add_subparsers(required=True, metavar="SUBCOMMAND")
    export = subcommands.add_parser(
        "export",
        help="export a checkpoint (the same as python -m builder)",
        description="Export a checkpoint to a folder that onnxruntime-genai runs.",
        epilog=options_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_export_arguments(export)
    export.set_defaults(run=run_export)
    return parser


if __name__ == "__main__":
    sys.exit(main())
