"""Running verify on exports, and looking at what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftsmith.cli import main
from draftsmith.verify.checks import Check, Results
from draftsmith.verify.run import verify
from tests.faults.trying import PAIR

TARGET, DFLASH2, DSPARK = PAIR / "target", PAIR / "dflash2", PAIR / "dspark"


def proof(folder: Path, target: Path | None = None, source: Path | None = None, run: bool = False) -> Results:
    """What all checks say; those of numbers only with ``run``."""
    results = Results(lambda check: None)
    verify(folder, target, source, results, run)
    return results


def named(results: Results, name: str) -> Check:
    """A check by its name."""
    return next(check for check in results.checks if check.name == name)


def failed(results: Results) -> list[str]:
    """The names of checks that failed."""
    return [check.name for check in results.failed]


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit status, stdout and stderr of ``draftsmith verify``."""
    status = main(["verify", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err
