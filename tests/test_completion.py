"""Completion, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder.option_table import OPTIONS
from draftsmith.completion import SHELLS

BIN = Path(sys.executable).parent
BASH = """
eval "$(draftsmith completion bash)"
complete -p draftsmith >&2
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
read -ra COMP_WORDS <<< "$1"
[[ $1 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_python_argcomplete draftsmith
printf '%s\\n' "${COMPREPLY[@]}"
"""


def shell(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=True)


def completed(folder: Path, line: str) -> list[str]:
    """What bash makes of a line when Tab is pressed at its end."""
    result = shell(folder, "bash", "--norc", "-c", BASH, "bash", line)
    assert "_python_argcomplete draftsmith" in result.stderr
    return sorted(word.strip() for word in result.stdout.splitlines() if word.strip())


def test_subcommands_and_flags(tmp_path: Path) -> None:
    commands = {"export", "verify", "speculate", "inspect", "doctor", "completion"}
    assert set(completed(tmp_path, "draftsmith ")) >= commands
    assert completed(tmp_path, "draftsmith exp") == ["export"]
    flags = completed(tmp_path, "draftsmith export --")
    assert {"--input", "--model_name", "--output", "--precision", "--extra_options", "--quiet", "--verbose"} <= set(
        flags
    )
    assert {"--target", "--drafter", "--strict", "--report"} <= set(completed(tmp_path, "draftsmith verify --"))
    assert completed(tmp_path, "draftsmith completion ") == sorted({*SHELLS, "--help"})


def test_values(tmp_path: Path) -> None:
    assert completed(tmp_path, "draftsmith export -e c") == ["cpu", "cuda"]
    assert completed(tmp_path, "draftsmith export --precision ") == ["bf16", "fp16", "fp32"]
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "check.txt").touch()
    assert completed(tmp_path, "draftsmith export -i che") == ["checkpoint/"]
    assert completed(tmp_path, "draftsmith inspect che") == ["checkpoint/"]


def test_extra_options(tmp_path: Path) -> None:
    line = "draftsmith export -i x --extra_options "
    assert {word.rstrip("=") for word in completed(tmp_path, line)} >= {option.name for option in OPTIONS}
    assert completed(tmp_path, f"{line}context_length=9 prune") == ["prune_lm_head="]
    assert "context_length=" not in completed(tmp_path, f"{line}context_length=9 ")
    assert completed(tmp_path, f"{line}prune_lm_head=") == ["false", "true"]
    assert completed(tmp_path, f"{line}last_tap=n") == ["normed"]
    assert completed(tmp_path, f"{line}context_length=") == []
    (tmp_path / "drafters").mkdir()
    assert completed(tmp_path, f"{line}drafter_path=draf") == ["drafters/"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(tmp_path: Path) -> None:
    code = "draftsmith completion fish | source; complete -C '{}'"
    assert shell(tmp_path, "fish", "-N", "-c", code.format("draftsmith exp")).stdout.split()[0] == "export"
    assert (
        "prune_lm_head="
        in shell(tmp_path, "fish", "-N", "-c", code.format("draftsmith export --extra_options pr")).stdout
    )


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh(tmp_path: Path) -> None:
    code = (
        'autoload -Uz compinit && compinit -u; eval "$(draftsmith completion zsh)"; print -r -- $_comps[draftsmith]\n'
        '_describe() { print -rl -- $completions }; words=(draftsmith exp); BUFFER="draftsmith exp"; CURSOR=14\n'
        "_python_argcomplete draftsmith"
    )
    first, *rest = shell(tmp_path, "zsh", "-f", "-c", code).stdout.splitlines()
    assert first == "_python_argcomplete" and any(line.startswith("export") for line in rest)


def test_a_shell_that_is_not_known(tmp_path: Path) -> None:
    result = subprocess.run([BIN / "draftsmith", "completion", "tcsh"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and "tcsh" in result.stderr and "bash" in result.stderr


def test_nothing_is_imported_for_it_otherwise() -> None:
    code = "import sys; from draftsmith.cli import main; main(['doctor', '-h']); sys.exit('argcomplete' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0
