"""The README, typed from its top to its end: every command works, and shows what the README says it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.installed import copy_of_the_repository

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

# A comment before a block says why it is not run here, or how it ends.
NOT_RUN = re.compile(r"<!-- not run: (?P<why>.{10,}) -->")
FAILS = re.compile(r"<!-- fails with (?P<status>\d+) -->")


@dataclass(frozen=True)
class Block:
    """A block between fences: its language, its text, the line that it begins at, and the comment before it."""

    language: str
    text: str
    line: int
    comment: str

    @property
    def runs(self) -> bool:
        return self.language in ("bash", "python") and not NOT_RUN.fullmatch(self.comment)

    @property
    def status(self) -> int:
        found = FAILS.fullmatch(self.comment)
        return int(found["status"]) if found else 0


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page."""
    lines = text.splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        before = lines[start - 1] if start else ""
        comment = before if before.startswith("<!--") else ""
        yield Block(lines[start][3:], "\n".join(lines[start + 1 : number]), start + 1, comment)
        start = None
    assert start is None, f"line {start}: a fence is not closed"


BLOCKS = list(blocks(README.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh copy of the repository."""
    return copy_of_the_repository(tmp_path_factory.mktemp("readme") / "draftsmith")


def run(block: Block, tree: Path) -> subprocess.CompletedProcess[str]:
    """Run a block in the copy, with the copy's own packages."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(tree), "COLUMNS": "120"}
    command = (
        ["bash", "-euo", "pipefail", "-c", block.text] if block.language == "bash" else ["python", "-c", block.text]
    )
    out, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.run(command, cwd=tree, env=environment, text=True, timeout=300, stdout=out, stderr=both)


def plain(line: str) -> str:
    """A line without what differs from run to run and from machine to machine: numbers, units, runs of blanks."""
    return " ".join(re.sub(r"\d[\d.]*(e[-+]\d+)?( [kMG]?B\b)?", "#", line).split())


def missing_lines(shown: str, printed: str) -> list[str]:
    """The lines that the README shows and the command does not print; ``...`` at an end stands for any rest."""
    found = [plain(line) for line in printed.splitlines()]
    missing = []
    for line in filter(None, map(plain, shown.splitlines())):
        whole, rest = line.removesuffix("..."), line.endswith("...")
        if not any(text.startswith(whole) if rest else text == whole for text in found):
            missing.append(line)
    return missing


def test_every_command_works_in_order(tree: Path) -> None:
    printed = ""
    for block in BLOCKS:
        where = f"README.md:{block.line}"
        if block.runs:
            done = run(block, tree)
            printed = done.stdout
            assert done.returncode == block.status, f"{where}: exit status {done.returncode}\n{block.text}\n{printed}"
        elif block.language == "text":
            missing = missing_lines(block.text, printed)
            assert not missing, f"{where}: not printed: {missing}\n{printed}"


def test_most_commands_are_run() -> None:
    """What is not run says why; a block is a command, an output, or a file."""
    commands = [block for block in BLOCKS if block.language in ("bash", "python")]
    left_out = [block for block in commands if not block.runs]
    assert {block.language for block in BLOCKS} <= {"bash", "python", "text", "yaml"}
    assert len(commands) >= 14 and len(left_out) <= 5, [block.line for block in left_out]
    for block in commands:
        assert block.comment == "" or NOT_RUN.fullmatch(block.comment) or FAILS.fullmatch(block.comment)
    for why in (NOT_RUN.fullmatch(block.comment) for block in left_out):
        assert why and all((ROOT / name).exists() for name in re.findall(r"[\w/]+\.\w+", why["why"]))


def test_a_command_that_fails_and_a_line_that_is_not_printed_are_seen(tree: Path) -> None:
    assert run(Block("bash", "draftsmith export -i nowhere -o out-none -p fp32 -e cpu", 1, ""), tree).returncode == 2
    assert run(Block("bash", "false; true", 1, ""), tree).returncode == 1
    assert missing_lines("in all  7.8 MB\nNote: a thing...", "  in all   1.2 kB\nNote: a thing that is long") == []
    assert missing_lines("passed  shapes: 3", "failed  shapes: 3") == ["passed shapes: #"]
