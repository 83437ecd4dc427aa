"""draftsmith speculate: what it counts, what it prints, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftsmith.acceptance import Acceptance
from draftsmith.cli import main
from draftsmith.speculate import Speculation, read_prompts, speculate
from draftsmith.validation.draft_session import Turn
from draftsmith.validation.drafter_reference import Request, draft, extend
from draftsmith.verify.folder import open_export
from draftsmith.verify.sources import open_drafter, open_target
from onnxkit.errors import ExportError
from tests.checkpoints import TINY
from tests.faults.trying import PAIR
from tests.nightly import sampled
from tests.runtime import export

PROMPTS = PAIR / "prompts.txt"


@pytest.fixture(scope="module", params=sampled(["dflash2", "dspark"], every=2))
def pair_export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind = str(request.param)
    folder = tmp_path_factory.mktemp("speculate") / kind
    options = (f"drafter_path={PAIR / kind}", "context_length=1024")
    return kind, export(PAIR / "target", folder, *options, precision="bf16", provider="cuda")


def test_acceptance_of_four_rounds() -> None:
    """By hand: seven drafts, none, two and two. Three of the rounds accepted the first draft, one the last."""
    found = Acceptance.of([7, 0, 2, 2])
    assert found.histogram == (1, 0, 2, 0, 0, 0, 0, 1)
    assert (found.rounds, found.accepted, found.mean) == (4, 11, 2.75)
    assert found.by_position() == [0.75, 0.75, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert sum(found.by_position()) == found.mean
    lines = found.lines()
    assert lines[0] == "mean accepted length 2.75" and lines[-1].startswith(
        "accepted by position  1: 75%  2: 75%  3: 25%"
    )
    assert lines[4] == f"  2       2  {'#' * 40}"


def test_acceptance_of_no_round() -> None:
    found = Acceptance.of([])
    assert (found.rounds, found.accepted, found.mean) == (0, 0, 0.0) and set(found.by_position()) == {0.0}
    assert found.lines()[0] == "mean accepted length 0.00"


def test_what_is_printed() -> None:
    text = "\n".join(Speculation(("a",), ("b",), Acceptance((4, 3, 2, 1)), 30, 25, None).lines())
    assert "drafts proposed 30, accepted 10, in 10 rounds" in text and "mean accepted length 1.00" in text
    assert "target passes 15 of 25 without drafts: 40% saved" in text


def test_the_bundled_pair(capsys: pytest.CaptureFixture[str], pair_export: tuple[str, Path]) -> None:
    arguments = ["speculate", str(pair_export[1]), "--prompts", str(PROMPTS), "--max-new-tokens", "48", "--baseline"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    count = len(read_prompts(PROMPTS))
    assert f"tokens with and without drafts are equal for {count} of {count} prompts" in out
    assert all(f"--- {prompt.splitlines()[0]}" in out for prompt in read_prompts(PROMPTS))
    mean = float(out.split("mean accepted length ")[1].split()[0])
    assert mean > 2  # docs/trained-pair.md has the figures


def test_the_engines_acceptance_is_the_references(pair_export: tuple[str, Path]) -> None:
    """Replay the Engine's text: after each round the PyTorch drafter proposes what the Engine accepts and rejects."""
    import numpy as np
    import torch

    from draftsmith.validation.engine import run_engine
    from draftsmith.validation.reference import operator_epsilon
    from draftsmith.validation.widen import widen

    kind, folder = pair_export
    opened = open_export(folder)
    assert opened.drafter is not None
    with operator_epsilon():
        target = open_target(PAIR / "target", opened)
        source = open_drafter(PAIR / kind, opened.drafter, target)
        low = folder.parent / f"{kind}-low"
        widen(folder, low)
        rng = np.random.default_rng(4)
        prompt = rng.integers(3, 600, 20).tolist()
        run = run_engine(low, [prompt], 40)
        text = prompt + run.tokens[0]
        streams = target.expected(np.array(text)).streams
    taps = np.concatenate([streams[tap] for tap in source.config.taps], axis=-1)
    reference, request, at, histogram = source.reference(target), Request(), len(prompt), [0] * 8
    while at < len(text) - 8:
        turn = Turn(taps[request.length : at], text[at])
        extend(reference, request, torch.from_numpy(turn.taps))
        path = draft(reference, request, text[at]).path()[:7]
        accepted = next((i for i, token in enumerate(path) if text[at + 1 + i] != token), len(path))
        histogram[accepted] += 1
        at += accepted + 1
    rounds = run.accepted_lengths()
    assert (
        sum(abs(a - b) for a, b in zip(rounds, histogram, strict=True)) <= 8
    )  # the end of the text, which is cut short
    assert sum(histogram[1:]) and all(b >= a for a, b in zip(histogram, rounds, strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read"),
        ("", "There are no prompts"),
        ("\n \n", "There are no prompts"),
        ('"open', "not a valid JSON string"),
    ],
)
def test_prompts(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "prompts.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ExportError, match=expected):
        read_prompts(path)


def test_prompts_with_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "p").write_text('one\n\n"two\\nlines"\n')
    assert read_prompts(tmp_path / "p") == ["one", "two\nlines"]


def test_what_cannot_speculate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = export(TINY, tmp_path / "out")
    (tmp_path / "p").write_text("one")
    assert main(["speculate", str(out), "--prompts", str(tmp_path / "p")]) == 2
    assert "no drafter" in capsys.readouterr().err
    assert main(["speculate", str(out), "--prompts", str(tmp_path / "p"), "--max-new-tokens", "0"]) == 2
    assert "--max-new-tokens" in capsys.readouterr().err


def test_a_prompt_that_is_too_long(pair_export: tuple[str, Path]) -> None:
    with pytest.raises(ExportError, match="too long"):
        speculate(pair_export[1], ["word " * 2000], 8, baseline=False)
