"""Decoding with drafts in the real Engine, and how much they helped."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime_genai as og

from draftsmith.acceptance import Acceptance
from draftsmith.validation.engine import run_engine
from draftsmith.validation.widen import widen
from draftsmith.verify.alone import without_drafter
from draftsmith.verify.folder import CONFIG, open_export
from onnxkit.errors import ExportError

STDIN = Path("-")


@dataclass(frozen=True)
class Speculation:
    """Texts, and how much the drafts helped.

    Attributes:
        prompts: The prompts.
        texts: The text generated after each.
        acceptance: How many drafts were accepted.
        proposed: Drafts that were proposed.
        passes: Passes of the target over one request, without drafts: one for each token except the first of a text.
        differing: Prompts whose tokens without drafts differ; None if there was no such run.
    """

    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    acceptance: Acceptance
    proposed: int
    passes: int
    differing: tuple[int, ...] | None

    def lines(self) -> list[str]:
        """Lines to print: what was proposed and accepted, and how many passes of the target that saves."""
        found = self.acceptance
        share = found.accepted / self.passes if self.passes else 0.0
        return [
            f"drafts proposed {self.proposed}, accepted {found.accepted}, in {found.rounds} rounds",
            *found.lines(),
            f"target passes {self.passes - found.accepted} of {self.passes} without drafts: {share:.0%} saved",
        ]


def speculate(folder: Path, prompts: Sequence[str], count: int, baseline: bool, provider: str = "cpu") -> Speculation:
    """Decode greedily with drafts, ``count`` tokens after each prompt.

    Args:
        folder: The export.
        prompts: What to continue.
        count: Tokens to generate after each prompt.
        baseline: Whether to decode without drafts as well, and compare.
        provider: ``cpu`` runs a copy lowered to float32, ``cuda`` the export itself.

    Raises:
        ExportError: The folder is not an export with a drafter and a tokenizer, or a prompt is too long.
    """
    export = open_export(folder)
    if export.drafter is None or not (folder / "tokenizer.json").is_file():
        raise ExportError(
            "The export cannot speculate.",
            where=folder / CONFIG,
            found="no drafter" if export.drafter is None else "no tokenizer.json",
            accepted="an export with a drafter and a tokenizer",
            fix="Export with drafter_path, from a checkpoint that has a tokenizer.",
        )
    with tempfile.TemporaryDirectory(prefix="draftsmith-speculate-") as work:
        ran = folder
        if provider == "cpu":
            ran = Path(work) / "low"
            widen(folder, ran)
        tokenizer = og.Tokenizer(og.Model(og.Config(str(ran))))
        ids = [tokenizer.encode(prompt).tolist() for prompt in prompts]
        _check_lengths(export.config["model"]["context_length"], ids, count)
        run = run_engine(ran, ids, count)
        differing = None
        if baseline:
            alone = run_engine(without_drafter(ran, Path(work) / "alone"), ids, count)
            differing = tuple(i for i, (a, b) in enumerate(zip(run.tokens, alone.tokens, strict=True)) if a != b)
        texts = tuple(tokenizer.decode(tokens) for tokens in run.tokens)
    passes = sum(max(len(tokens) - 1, 0) for tokens in run.tokens)
    found = Acceptance(tuple(run.accepted_lengths()))
    return Speculation(tuple(prompts), texts, found, run.count("draft_tokens_proposed"), passes, differing)


def _check_lengths(context: int, ids: list[list[int]], count: int) -> None:
    for number, prompt in enumerate(ids):
        if not prompt or len(prompt) + count > context:
            raise ExportError(
                "A prompt is empty or too long.",
                where=f"prompt {number + 1}",
                found=f"{len(prompt)} tokens, and {count} to follow",
                accepted=f"at least 1, and at most {context} in all (context_length)",
                fix="Shorten it, ask for fewer tokens, or export with a longer context_length.",
            )


def read_prompts(path: Path) -> list[str]:
    """Prompts, one per line; a line in JSON quotes may hold line breaks. ``-`` is standard input.

    Raises:
        ExportError: The file cannot be read, a quoted line is not a valid JSON string, or there is no prompt.
    """
    where = "standard input" if path == STDIN else path
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        text = data.decode("utf-8-sig")  # editors on Windows begin a file with a byte order mark
    except (OSError, ValueError) as error:
        raise ExportError(
            "The prompts cannot be read.",
            where=where,
            found=error.strerror if isinstance(error, OSError) else error,
            accepted="a text file in UTF-8, one prompt per line; - for standard input",
            fix="Check the path and the file's encoding.",
        ) from error
    lines = enumerate(text.split("\n"), 1)  # nothing else ends a line: a prompt may hold Unicode's separators
    prompts = [_prompt(line.removesuffix("\r"), f"{where}, line {number}") for number, line in lines if line.strip()]
    if not prompts:
        raise ExportError(
            "There are no prompts.",
            where=where,
            found="an empty file" if not text else "blank lines only",
            accepted="one prompt per line",
            fix="Write at least one.",
        )
    return prompts


def _prompt(line: str, where: str) -> str:
    """The prompt of a line: what is in the JSON quotes, or the line itself."""
    if not line.startswith('"'):
        return line
    try:
        prompt = json.loads(line)
        prompt.encode()  # half of a surrogate pair is not text
    except ValueError as error:
        raise ExportError(
            "A quoted prompt is not a valid JSON string.",
            where=where,
            found=error,
            accepted='"...", with \\n for a line break and \\" for a quote',
            fix="Correct the line; or begin it with a space, to take it as it is, quotes and all.",
        ) from error
    return str(prompt)
