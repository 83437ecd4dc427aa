"""What a refusal looks like: exit status 2 and one message with a place, and nothing begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.cli import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a refusal; sees that it is one block with a place, and that nothing else was printed."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and "Traceback" not in err
    for label in ("where:", "found:", "accepted:", "to do:"):
        assert label in err
    return err


def refused_checkpoint(capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path, *options: str) -> str:
    """The message with which a checkpoint is refused; sees that no output was begun."""
    extra = ["--extra_options", *options] if options else []
    output = tmp_path / "out"
    before = sorted(tmp_path.rglob("*"))
    message = refused(capsys, "-i", checkpoint, "-o", output, "-p", "fp32", "-e", "cpu", *extra)
    assert sorted(tmp_path.rglob("*")) == before
    return message
