"""The samples that users start from, on the CPU; tests/cuda runs them on the stand-in device."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnxruntime_genai as og

from draftsmith.validation.engine import run_engine
from draftsmith.validation.widen import widen
from tests.faults.trying import PAIR
from tests.runtime import export

ROOT = Path(__file__).parent.parent
PROMPTS = ("Ada found the", "def mended_", "Bo heard", "The")


def test_the_engine_sample_decodes_with_drafts(tmp_path: Path) -> None:
    """More prompts than slots: each text is the one that the Engine gives when all are decoded at once."""
    options = (f"drafter_path={PAIR / 'dflash2'}", "context_length=1024")
    folder = export(PAIR / "target", tmp_path / "out", *options, precision="bf16", provider="cuda")
    low = tmp_path / "low"
    widen(folder, low)
    command = [sys.executable, "scripts/serve_engine.py", str(low), "--slots", "2", "--max-new-tokens", "24"]
    text = "\n".join(PROMPTS) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=True)
    tokenizer = og.Tokenizer(og.Model(str(low)))
    run = run_engine(low, [tokenizer.encode(prompt).tolist() for prompt in PROMPTS], 24)
    for prompt, tokens in zip(PROMPTS, run.tokens, strict=True):
        assert f"--- {prompt}\n{tokenizer.decode(tokens)}\n" in done.stdout
    rounds = int(re.findall(r"drafts in (\d+) rounds", done.stdout)[0])  # how requests are batched moves it a little
    assert 0 < rounds < sum(map(len, run.tokens)) * 0.75
