"""The command itself, in processes of its own: what it imports, prints and leaves."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from functools import cache
from pathlib import Path

import pytest

from builder.option_table import OPTIONS
from tests.checkpoints import TINY

REPOSITORY = Path(__file__).parent.parent

# What an export must not need: torch and transformers are references. The runtime renders the chat template, where both
# are there; the help and mistakes in flags wait for neither.
REFERENCES = ("torch", "transformers", "tokenizers")
ONNX = ("onnx", "onnx_ir", "onnxscript", "numpy")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def imported(*arguments: str, module: str = "builder") -> tuple[int, set[str]]:
    """The exit status of an export in its own process, and the packages that it imported."""
    code = (
        f"import json, sys; from {module}.cli import main\n"
        "try: status = main(json.loads(sys.argv[1]))\n"
        "except SystemExit as end: status = end.code\n"
        "print('\\n' + json.dumps([status, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    status, names = json.loads(python("-c", code, json.dumps(arguments)).stdout.splitlines()[-1])
    return status, set(names)


def test_an_export_imports_no_framework(tmp_path: Path) -> None:
    status, names = imported("-i", str(TINY), "-o", str(tmp_path / "out"), "-p", "fp32", "-e", "cpu")
    assert status == 0
    assert set(ONNX) <= names and not names & set(REFERENCES)


@cache
def startup() -> frozenset[str]:
    """The packages that a process has imported before it does anything."""
    code = "import sys; print(*{name.split('.')[0] for name in sys.modules})"
    return frozenset(python("-c", code).stdout.split())


REQUEST = ["-i", str(TINY), "-o", "out", "-p", "fp32", "-e", "cpu"]
MISTAKES = [
    ["--help"],
    ["-x"],
    [*REQUEST, "--outptu", "x"],
    ["-i", str(TINY), "-o", "out", "-p", "fp23", "-e", "cpu"],
    ["-i", str(TINY), "-o", "out", "-p", "fp32", "-e", "gpu"],
    ["-i", "nowhere", "-o", "out", "-p", "fp32", "-e", "cpu"],
    ["-i", str(TINY / "config.json"), "-o", "out", "-p", "fp32", "-e", "cpu"],
    ["-i", str(TINY), "-o", str(TINY / "config.json"), "-p", "fp32", "-e", "cpu"],
    [*REQUEST, "--search", "{}"],
    *([*REQUEST, "--extra_options", pair] for pair in ("zzz=1", "exclude_lm_head=true", "paged_block_size=16", "a")),
]
SUBCOMMANDS: dict[str, list[list[str]]] = {
    "verify": [["--help"], [], ["out", "--provider", "gpu"], ["out", "--tagret", "x"], ["nowhere"], ["out", "--jobs"]],
    "speculate": [["--help"], [], ["out", "--prompts", "x", "--max-new-tokens", "0"], ["nowhere", "--prompts", "x"]],
    "inspect": [["--help"], [], ["out", "--block-size", "1"], ["nowhere"], [str(TINY / "config.json")]],
    "doctor": [["--help"], ["--jsn"], ["nowhere"]],
    "exprot": [[]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        *(("builder", mistake) for mistake in MISTAKES),
        *(("draftsmith", ["export", *mistake]) for mistake in MISTAKES),
        *(("draftsmith", [name, *mistake]) for name, mistakes in SUBCOMMANDS.items() for mistake in mistakes),
    ],
)
def test_help_and_mistakes_in_flags_wait_for_nothing(module: str, arguments: list[str]) -> None:
    """They import nothing but Python's own library, and what Python imports by itself when it starts here."""
    status, names = imported(*arguments, module=module)
    assert status == (0 if "--help" in arguments else 2)
    assert names <= {
        *sys.stdlib_module_names,
        "builder",
        "draftsmith",
        "drafters",
        "genai_config",
        "onnxkit",
        *startup(),
    }


@pytest.mark.parametrize("command", [["-m", "builder"], ["-m", "draftsmith.cli", "export"]])
def test_help_lists_every_option(command: list[str]) -> None:
    result = python(*command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    text = " ".join(result.stdout.split())
    for flag in ("-i", "--input", "-o", "--output", "-p", "--precision", "-e", "--execution_provider", "-c"):
        assert flag in text
    for option in OPTIONS:
        for part in (option.name, option.help, option.accepted, option.default):
            assert part in text


def test_version_and_subcommands() -> None:
    assert python("-m", "draftsmith.cli", "--version").stdout.startswith("draftsmith 0.")
    result = python("-m", "draftsmith.cli", "exprot")
    assert result.returncode == 2 and "export" in result.stderr and "Traceback" not in result.stderr


def test_summary(tmp_path: Path) -> None:
    """Files with their sizes, the time, what was left out on stdout; nothing else there."""
    output = tmp_path / "out"
    result = python("-m", "draftsmith.cli", "export", "-i", str(TINY), "-o", str(output), "-p", "fp32", "-e", "cpu")
    assert result.returncode == 0
    first, *lines = result.stdout.splitlines()
    assert first.startswith(f"Exported to {output} in ") and first.endswith(" s:")
    for path in output.iterdir():
        assert any(line.split()[:1] == [path.name] for line in lines)
    assert any("vision encoder: 21 tensors" in line for line in lines)
    assert any("multi-token prediction head: 2 tensors" in line for line in lines)


def test_progress_is_a_bar_over_bytes_on_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = ["-m", "builder", "-i", str(TINY), "-o", str(tmp_path / "out"), "-p", "fp32", "-e", "cpu"]
    subprocess.run([sys.executable, *command], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=follower, check=True)
    assert select.select([leader], [], [], 5)[0]  # reading would wait for ever where nothing was shown
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    os.close(follower)
    assert "Writing weights" in shown and "7.73M" in shown


def test_no_bar_where_nobody_looks(tmp_path: Path) -> None:
    result = python("-m", "builder", "-i", str(TINY), "-o", str(tmp_path / "out"), "-p", "fp32", "-e", "cpu")
    assert result.stderr == ""


def test_a_bug_shows_its_traceback(tmp_path: Path) -> None:
    code = (
        "import builder.qwen35.family, sys\n"
        "builder.qwen35.family.build_dense = lambda *_: 1 / 0\n"
        "from builder.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    output = tmp_path / "out"
    result = python("-c", code, "-i", str(TINY), "-o", str(output), "-p", "fp32", "-e", "cpu")
    assert result.returncode == 70 and "ZeroDivisionError" in result.stderr and not output.exists()
