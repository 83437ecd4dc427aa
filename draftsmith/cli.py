"""The console script ``draftsmith``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.cli import add_export_arguments, add_loudness, guarded, options_help, run_export
from builder.hub_name import HubName, folder_or_hub
from builder.parser import Parser, at_least, path
from draftsmith import completion
from onnxkit import __version__
from onnxkit.progress import Loudness, loudness
from onnxkit.systems import needs_locks
from onnxkit.text import escaped
from onnxkit.weights.misfits import EXPORT, check_folders

# The exit status of an incomplete proof under --strict; the others are 0, 1 (failed), 2 (a user error), 70 (a bug).
INCOMPLETE = 3


def main(argv: Sequence[str] | None = None) -> int:
    """``draftsmith SUBCOMMAND ...``; returns the exit status."""

    def command() -> int | None:
        parser = _parser()
        if completion.asked():
            completion.answer(parser)
        arguments = parser.parse_args(argv)
        needs_locks("Draftsmith")
        status: int | None = arguments.run(arguments)
        return status

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
    _add_verify(subcommands)
    _add_speculate(subcommands)
    _add_inspect(subcommands)
    _add_doctor(subcommands)
    _add_completion(subcommands)
    for each in (parser, *subcommands.choices.values()):
        each.others = subcommands.choices
    return parser


def _add_verify(subcommands: Any) -> None:
    verify = subcommands.add_parser(
        "verify",
        help="prove an export, without a GPU or on one",
        description="Compare every file of an export with what would be written from its checkpoints, its numbers with "
        "PyTorch's, and run it in the real Engine: a copy lowered to float32 on the CPU, or with --provider cuda the "
        "export itself on a GPU, within limits that are measured for its 16 bits. The verdict is one of three: passed, "
        "incomplete (nothing differs, but something was not compared, for example because a checkpoint was not "
        "given), failed.",
        epilog="Exit status: 0 passed or incomplete, 1 failed, 2 could not be done, 3 incomplete with --strict, "
        "70 a bug of this tool.",
        allow_abbrev=False,
    )
    verify.add_argument("export", type=path, metavar="FOLDER", help="the export")
    verify.add_argument(
        "--target",
        type=_source,
        metavar="FOLDER",
        help="the checkpoint that it was made from: a folder, or owner/name[@revision] on the Hub",
    )
    verify.add_argument("--drafter", type=_source, metavar="FOLDER", help="the drafter's checkpoint, likewise")
    verify.add_argument(
        "-c",
        "--cache_dir",
        type=path,
        metavar="FOLDER",
        help="where to keep downloads from the Hub (default: the Hub's own cache)",
    )
    verify.add_argument("--provider", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    verify.add_argument("--strict", action="store_true", help="an incomplete proof is an error (exit status 3)")
    verify.add_argument("--files", action="store_true", help="only compare files and run nothing: needs little memory")
    verify.add_argument("--report", type=path, metavar="FILE", help="write an HTML report, which needs no network")
    add_loudness(
        verify,
        "print only errors and checks that did not pass: nothing if everything passes",
        "print each step to stderr: what is opened, planned, compared and run",
    )
    verify.set_defaults(run=_run_verify)


def _source(text: str) -> Path | HubName:
    """A checkpoint: a folder, or a repository on the Hub."""
    return folder_or_hub(str(path(text)) if not text.strip() else text, "--target or --drafter")


def _run_verify(arguments: argparse.Namespace) -> int:
    check_folders(EXPORT, FOLDER=arguments.export)
    check_folders(target=arguments.target, drafter=arguments.drafter)
    from draftsmith.cuda_runtime import check_cuda
    from draftsmith.environment import needs_reference, needs_runtime, silence_libraries

    silence_libraries()
    if arguments.provider == "cuda":
        check_cuda()
        needs_reference()
    else:
        needs_runtime()
    from draftsmith.report.page import write_report
    from draftsmith.verify.checks import SENTENCES, Check, Results, Verdict, coloured
    from draftsmith.verify.hub_sources import checkpoint_folder
    from draftsmith.verify.machine import check_writable
    from draftsmith.verify.run import verify

    if arguments.report:
        check_writable(arguments.report)
    quiet = arguments.loudness is Loudness.QUIET

    def tell(check: Check) -> None:
        if not (quiet and check.verdict is Verdict.PASSED):
            print(coloured(str(check), check.verdict), flush=True)  # so that a job's log shows each check as it ends

    results = Results(tell)
    target, drafter = (
        checkpoint_folder(getattr(arguments, role), role, arguments.export, arguments.cache_dir)
        for role in ("target", "drafter")
    )
    folders = (arguments.export, target, drafter)
    try:
        with loudness(arguments.loudness):
            export = verify(*folders, results, run=not arguments.files, provider=arguments.provider)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("Interrupted; what is not listed above was not checked.") from error
    if arguments.report:
        write_report(arguments.report, export, results)
    verdict = results.verdict
    if not (quiet and verdict is Verdict.PASSED):
        print(coloured(f"{SENTENCES[verdict]}: {results.summary()}. ({arguments.export})", verdict))
    strict = INCOMPLETE if arguments.strict else 0
    return {Verdict.PASSED: 0, Verdict.INCOMPLETE: strict, Verdict.FAILED: 1}[verdict]


def _add_speculate(subcommands: Any) -> None:
    speculate = subcommands.add_parser(
        "speculate",
        help="decode with drafts, and report how much they helped",
        description="Decode prompts greedily with drafts in the real Engine: on the CPU, a copy lowered to float32; on "
        "a GPU, the export itself.",
        allow_abbrev=False,
    )
    speculate.add_argument("export", type=path, metavar="FOLDER", help="an export with a drafter")
    speculate.add_argument(
        "--prompts", type=path, required=True, metavar="FILE", help="prompts, one a line; - for standard input"
    )
    speculate.add_argument(
        "--max-new-tokens", type=at_least(1), default=64, metavar="N", help="new tokens for each prompt (default 64)"
    )
    speculate.add_argument("--baseline", action="store_true", help="also decode without drafts, and compare the tokens")
    speculate.add_argument("--provider", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    speculate.set_defaults(run=_run_speculate)


def _run_speculate(arguments: argparse.Namespace) -> int:
    check_folders(EXPORT, FOLDER=arguments.export)
    from draftsmith.cuda_runtime import check_cuda
    from draftsmith.environment import needs_runtime

    if arguments.provider == "cuda":
        check_cuda()
    else:
        needs_runtime()
    from draftsmith.speculate import read_prompts, speculate

    prompts = read_prompts(arguments.prompts)
    result = speculate(arguments.export, prompts, arguments.max_new_tokens, arguments.baseline, arguments.provider)
    for prompt, text in zip(result.prompts, result.texts, strict=True):
        print(f"--- {prompt}\n{text}")
    print("---", *result.lines(), sep="\n")
    if result.differing is not None:
        same = len(prompts) - len(result.differing)
        print(f"tokens with and without drafts are equal for {same} of {len(prompts)} prompts")
    return 1 if result.differing else 0


def _add_inspect(subcommands: Any) -> None:
    inspect = subcommands.add_parser(
        "inspect",
        help="say what a checkpoint is, who made it, and what becomes of its keys",
        description="Say what a checkpoint is, who made it, and what becomes of its keys. Reads headers, and norms.",
        allow_abbrev=False,
    )
    inspect.add_argument("folder", type=path, metavar="FOLDER", help="a target's or a drafter's checkpoint folder")
    inspect.add_argument(
        "--block-size", type=at_least(2), metavar="N", help="rows of a block, if no key gives them (TorchSpec)"
    )
    inspect.set_defaults(run=_run_inspect)


def _run_inspect(arguments: argparse.Namespace) -> int:
    check_folders(FOLDER=arguments.folder)
    from draftsmith.inspect import inspect

    for line in inspect(arguments.folder, arguments.block_size):
        print(escaped(line))
    return 0


def _add_doctor(subcommands: Any) -> None:
    doctor = subcommands.add_parser(
        "doctor",
        help="say whether the installed runtime works on this machine, and accepts an export",
        description="Check the packages of the runtime, CUDA's libraries, the driver and the GPU; given a folder, "
        "load each graph of the export, without its weights. Exit status: 0 all is well, 1 something that is needed "
        "is wrong, 2 the folder is not an export.",
        allow_abbrev=False,
    )
    doctor.add_argument("export", type=path, nargs="?", metavar="FOLDER", help="an export")
    doctor.add_argument("--json", action="store_true", help="print JSON instead of lines")
    doctor.set_defaults(run=_run_doctor)


def _run_doctor(arguments: argparse.Namespace) -> int:
    check_folders(EXPORT, FOLDER=arguments.export)
    from draftsmith.doctor.findings import Findings
    from draftsmith.doctor.run import doctor

    findings = Findings((lambda finding: None) if arguments.json else print)
    doctor(arguments.export, findings)
    if arguments.json:
        print(json.dumps(findings.as_json(), indent=2))
    else:
        print(f"{arguments.export or 'this environment'}: {findings.summary()}")
    return 1 if findings.wrong else 0


def _add_completion(subcommands: Any) -> None:
    parser = subcommands.add_parser(
        "completion",
        help="print a script that makes a shell complete this command",
        description="Print a script that makes a shell complete subcommands, flags, their values, and the keys of "
        "--extra_options. " + "; ".join(f"{shell}: {text}" for shell, text in completion.INSTALLED.items()) + ".",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=completion.SHELLS, help="the shell")
    parser.set_defaults(run=_run_completion)


def _run_completion(arguments: argparse.Namespace) -> int:
    print(completion.script(arguments.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
