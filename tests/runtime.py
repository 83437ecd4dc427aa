"""Running exports: in onnxruntime, and in onnxruntime-genai's Generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

from builder.cli import main
from draftsmith.validation.session import Array

VOCAB = 640
SPECIAL = 3  # ids below are special tokens, among them both stop ids


def export(checkpoint: Path, output: Path, *options: str, precision: str = "fp32", provider: str = "cpu") -> Path:
    """Export through the command line, in this process."""
    arguments = ["-i", str(checkpoint), "-o", str(output), "-p", precision, "-e", provider]
    assert main([*arguments, *(["--extra_options", *options] if options else [])]) == 0
    return output


def random_ids(seed: int, batch: int, length: int) -> Array:
    """Token ids that are no special tokens, ``[batch, length]``."""
    return np.random.default_rng(seed).integers(SPECIAL, VOCAB, (batch, length))


def generate(export_folder: Path, prompts: Array, count: int, chunks: int = 1, **search: Any) -> list[list[int]]:
    """``count`` greedy tokens after each prompt, by the runtime's Generator; the prompt fed in ``chunks`` parts."""
    model = og.Model(str(export_folder))
    parameters = og.GeneratorParams(model)
    batch, length = prompts.shape
    parameters.set_search_options(max_length=length + count, batch_size=batch, do_sample=False, **search)
    generator = og.Generator(model, parameters)
    for chunk in np.array_split(prompts.astype(np.int32), chunks, axis=1):
        generator.append_tokens(chunk)
    while not generator.is_done():
        generator.generate_next_token()
    return [generator.get_sequence(row)[length:].tolist() for row in range(batch)]
