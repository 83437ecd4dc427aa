"""What a user reads and leaves behind: rows that failed, interruptions, paths, prompts, the arguments of scripts."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from draftsmith.cli import main
from draftsmith.speculate import STDIN, read_prompts
from draftsmith.verify.checks import Results, Verdict, Worst
from onnxkit.errors import ExportError
from tests.checkpoints import TINY
from tests.drafters import drafter
from tests.nightly import sampled
from tests.runtime import export

REPOSITORY = Path(__file__).parent.parent


def python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    variables = os.environ | environment
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False, env=variables
    )


# --- the command line ---

REQUEST = ["export", "-i", str(TINY), "-o", "out", "-p", "fp32", "-e", "cpu"]


@pytest.mark.parametrize(
    ("arguments", "where", "to_do"),
    [
        (["verify", "OUT", "--tagret", "x"], "draftsmith verify", "Did you mean --target?"),
        (["verify", "--tagret", "x"], "draftsmith verify", "Did you mean --target?"),  # though FOLDER is missing
        (["verify", "OUT", "--prompts", "x"], "draftsmith verify", "a flag of draftsmith speculate"),
        (["verify", "OUT", "--provider", "gpu"], "draftsmith verify --provider", "Write --provider cuda"),
        (["verify", "OUT", "--provider", "CPU"], "draftsmith verify --provider", "Write --provider cpu, in lower case"),
        (["verify", "OUT", "more"], "draftsmith verify", "draftsmith verify --help"),
        (["speculate", "OUT", "--basline"], "draftsmith speculate", "Did you mean --baseline?"),
        (["speculate", "OUT", "--prompts", "x", "--max-new-tokens", "0"], "draftsmith speculate", "--help"),
        (["inspect", "D", "--blocksize", "8"], "draftsmith inspect", "Did you mean --block-size?"),
        (["inspect", "D", "--block-size", "1"], "draftsmith inspect", "draftsmith inspect --help"),
        (["doctor", "--jsn"], "draftsmith doctor", "Did you mean --json?"),
        (["exprot"], "draftsmith", "Did you mean export?"),
        (["--target", "x", "verify"], "draftsmith", "a flag of draftsmith verify"),
        (["export", "--outptu", "x"], "draftsmith export", "Did you mean --output?"),  # though all others are missing
        ([*REQUEST, "-precision", "fp32"], "draftsmith export", "Did you mean --precision?"),
        ([*REQUEST, "\u2013\u2013output", "x"], "draftsmith export", "Did you mean --output?"),
        ([*REQUEST, "--drafter_path=D"], "draftsmith export", "write --extra_options drafter_path=D."),
        ([*REQUEST, "--use_paged_attention", "true"], "draftsmith export", "--extra_options use_paged_attention=VALUE"),
        ([*REQUEST, "--exclude_mtp"], "draftsmith export", "leave the checkpoint's multi-token prediction head out"),
        ([*REQUEST, "context_length=8"], "draftsmith export", "Write --extra_options context_length=8."),
        ([*REQUEST, "--drafter", "D"], "draftsmith export", "a flag of draftsmith verify"),
    ],
)
def test_each_subcommand_answers_for_its_own_flags(
    capsys: pytest.CaptureFixture[str], arguments: list[str], where: str, to_do: str
) -> None:
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert f"  where:    {where}\n" in message and to_do in message.split("to do:")[1]
    assert "required" not in message


# --- rows that failed ---


def test_a_failed_row_begins_with_what_is_wrong() -> None:
    results = Results(lambda check: None)
    holds = "120 tokens of 5 prompts equal to those without drafts"
    passed, failed = results.stated("Engine", holds, []), results.stated("Engine", holds, ["after 3 tokens: 7"])
    assert str(passed) == f"passed      Engine: {holds}"
    assert str(failed).splitlines() == [
        "FAILED      Engine: after 3 tokens: 7",
        f"            expected: {holds}",
    ]
    assert str(results.stated("Engine", holds, [], 0)).startswith("FAILED      Engine: nothing was compared")


def test_a_failed_number_is_said_to_be_beyond_the_limit() -> None:
    results = Results(lambda check: None)
    what = "the output of layer 1"
    assert str(results.compared("tap 2", what, Worst(1e-7), 1e-5)) == f"passed      tap 2: {what}  1.0e-07 of 1e-05"
    failed = results.compared("tap 2", what, Worst(0.2), 1e-5)
    assert str(failed) == f"FAILED      tap 2: beyond the limit: {what}  2.0e-01 of 1e-05"
    assert "nearest" in str(results.compared("tap 2", what, Worst(0.2), 1e-5, "nearest to layer 0"))


def test_no_row_of_a_broken_export_keeps_the_sentence_of_success(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Break what each check of the files looks at; no line that says FAILED says what a whole export is told."""
    broken: dict[str, Callable[[str], str]] = {
        "genai_config.json": lambda text: text.replace('"num_hidden_layers": 8', '"num_hidden_layers": 7'),
        "draftsmith.json": lambda text: text.replace('"notes": [', '"notes": ["more", '),
        "tokenizer.json": lambda text: text + " ",
        "chat_template.jinja": lambda text: text + "{{ 'x' in 'xyz' }}",
    }
    whole = export(TINY, tmp_path / "out")
    arguments = ["verify", str(whole), "--target", str(TINY), "--files"]
    capsys.readouterr()
    assert main(arguments) == 0
    sentences = {line.split(":", 1)[1].strip() for line in rows(capsys, Verdict.PASSED)}
    assert len(sentences) > 8
    for name, change in broken.items():
        text = (whole / name).read_text()
        (whole / name).write_text(change(text))
        assert main(arguments) == 1
        failed = rows(capsys, Verdict.FAILED)
        assert failed and not [line for line in failed if line.split(":", 1)[1].strip() in sentences]
        (whole / name).write_text(text)
    data = bytearray((whole / "model.onnx.data").read_bytes())
    data[1000] ^= 1
    (whole / "model.onnx.data").write_bytes(data)
    assert main(arguments) == 1
    (row,) = rows(capsys, Verdict.FAILED)
    assert "weights as written: " in row and "byte for byte" not in row


def rows(capsys: pytest.CaptureFixture[str], verdict: Verdict) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{verdict.value}  ")]


def test_nothing_of_a_library_stands_between_the_rows(tmp_path: Path) -> None:
    """In a process of its own, as a CI job reads it: standard output has rows only, standard error nothing."""
    whole = export(TINY, tmp_path / "out", "context_length=64")
    done = python("-m", "draftsmith.cli", "verify", whole, "--target", TINY)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    assert last.startswith("The export passes") and all(re.match(r"passed      \S", line) for line in lines)


# --- interruptions ---

SIGNALLED = """
import os, sys
import {module} as module
assert callable(module.{name})
def stop(*_, **__):
    os.kill(os.getpid(), {number})
    {rest}
module.{name} = stop
from draftsmith.cli import main
sys.exit(main(sys.argv[1:]))
"""


def signalled(module: str, name: str, number: int, *arguments: object, tmp: Path) -> tuple[int, str]:
    """The status and the message of a command that gets a signal where it would call a function."""
    code = SIGNALLED.format(module=module, name=name, number=number, rest="")
    done = python("-c", code, *arguments, TMPDIR=str(tmp))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_is_stopped_leaves_nothing(tmp_path: Path, number: int) -> None:
    (tmp_path / "tmp").mkdir()
    arguments = ("export", "-i", TINY, "-o", tmp_path / "out", "-p", "fp32", "-e", "cpu")
    status, said = signalled("builder.write", "_write_manifest", number, *arguments, tmp=tmp_path / "tmp")
    assert status == 128 + number and sorted(tmp_path.iterdir()) == [tmp_path / "tmp"]
    assert said == ("Interrupted; the output folder is as it was.\n" if number == signal.SIGINT else "")


@pytest.mark.parametrize("number", sampled([signal.SIGHUP, signal.SIGINT, signal.SIGTERM], 3))
def test_a_proof_that_is_stopped_leaves_nothing(tmp_path: Path, number: int) -> None:
    """And does not speak of an output folder, of which it has none."""
    whole, tmp = export(TINY, tmp_path / "out"), tmp_path / "tmp"
    tmp.mkdir()
    status, said = signalled(
        "draftsmith.verify.run", "check_target", number, "verify", whole, "--target", TINY, tmp=tmp
    )
    left = [path.name for path in tmp.iterdir() if path.name != ".ses"]  # onnxruntime's own
    assert (status, left) == (128 + number, [])
    assert "output folder" not in said
    assert said == ("Interrupted; what is not listed above was not checked.\n" if number == signal.SIGINT else "")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As nohup starts a command that is to survive its terminal."""
    goes_on = {"module": "builder.export", "name": "_graphs", "rest": "return ()"}
    code = SIGNALLED.format(number=int(signal.SIGHUP), **goes_on)
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{code}"
    done = python("-c", code, "export", "-i", TINY, "-o", tmp_path / "out", "-p", "fp32", "-e", "cpu")
    assert done.returncode == 0 and (tmp_path / "out" / "model.onnx").is_file()


# --- paths and prompts ---


def test_a_tilde_in_every_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A shell leaves it as it is behind an equals sign: ``--output=~/out``, ``drafter_path=~/d``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t").symlink_to(TINY)
    drafter(tmp_path / "d", "dflash2")
    arguments = ["export", "--input=~/t", "--output=~/out", "-p", "bf16", "-e", "cuda"]
    assert main([*arguments, "--extra_options", "drafter_path=~/d"]) == 0
    assert (tmp_path / "out" / "dflash2.onnx").is_file()
    assert main(["inspect", "~/d"]) == 0
    verify = ["verify", "~/out", "--files", "--target=~/t", "--drafter=~/d", "--report=~/report.html"]
    assert main(verify) == 0 and (tmp_path / "report.html").is_file()
    assert main(["speculate", "~/out", "--prompts=~/none"]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_name_that_begins_with_a_tilde(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["inspect", "~nobody-of-that-name/x"]) == 2
    assert "~nobody-of-that-name/x" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_prompts_as_editors_save_them(tmp_path: Path, ending: str) -> None:
    """With a byte order mark, with either end of a line; and no other character ends one."""
    prompts = ["one", "two \u2028 three", 'says "so"', "  indented"]
    (tmp_path / "p").write_bytes(("\ufeff" + ending.join(prompts) + ending).encode())
    assert read_prompts(tmp_path / "p") == prompts


def test_prompts_from_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('\ufeffone\n"t\\nwo"\n'.encode())))
    assert read_prompts(STDIN) == ["one", "t\nwo"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ExportError) as refused:
        read_prompts(STDIN)
    assert "standard input" in str(refused.value)


@pytest.mark.parametrize("line", ['"open', '"a" b', '"\\ud800"', '"\\x"'])
def test_the_number_of_a_line_that_is_wrong(tmp_path: Path, line: str) -> None:
    (tmp_path / "p").write_text(f'one\n\n"two"\n{line}\nfive\n')
    with pytest.raises(ExportError) as refused:
        read_prompts(tmp_path / "p")
    assert refused.value.details["where"] == f"{tmp_path / 'p'}, line 4"


# --- scripts ---


def test_no_script_reads_its_arguments_by_hand() -> None:
    """Then argparse says what is missing, and what is wrong."""
    for script in sorted((REPOSITORY / "scripts").glob("*.py")):
        assert "sys.argv" not in script.read_text(encoding="utf-8"), script.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: kind, OUT_DIR"),
        (["dflash2"], "required: OUT_DIR"),
        (["dflash3", "OUT"], "invalid choice: 'dflash3'"),
        (["dspark", "OUT", "more"], "unrecognized arguments: more"),
        (["dspark", str(TINY / "config.json")], "is a file: name a folder"),
    ],
)
def test_the_script_of_the_readme(arguments: list[str], said: str) -> None:
    done = python("-m", "scripts.make_tiny_drafter", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("usage: ") and said in done.stderr
