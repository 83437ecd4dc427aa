"""Running exports: in onnxruntime, and in onnxruntime-genai's Generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_genai as og

from builder.cli import main

VOCAB = 640
SPECIAL = 3  # ids below are special tokens, among them both stop ids
Array = np.ndarray[Any, Any]


def export(checkpoint: Path, output: Path, *options: str, precision: str = "fp32", provider: str = "cpu") -> Path:
    """Export through the command line, in this process."""
    arguments = ["-i", str(checkpoint), "-o", str(output), "-p", precision, "-e", provider]
    assert main([*arguments, *(["--extra_options", *options] if options else [])]) == 0
    return output


def random_ids(seed: int, batch: int, length: int) -> Array:
    """Token ids that are no special tokens, ``[batch, length]``."""
    return np.random.default_rng(seed).integers(SPECIAL, VOCAB, (batch, length))


class Session:
    """An export's graph in onnxruntime, its state carried from call to call."""

    def __init__(self, export_folder: Path, batch: int) -> None:
        self.session = ort.InferenceSession(export_folder / "model.onnx", providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.length = 0
        self.state = {
            value.name: np.zeros(
                [{"batch_size": batch, "past_sequence_length": 0}.get(dim, dim) for dim in value.shape], np.float32
            )
            for value in self.session.get_inputs()
            if value.name.startswith("past")
        }

    def __call__(self, ids: Array) -> dict[str, Array]:
        """Run ``[batch, new]`` tokens; gives the outputs that are not states."""
        self.length += ids.shape[1]
        mask = np.ones((len(ids), self.length), np.int64)
        values = self.session.run(None, {"input_ids": ids.astype(np.int64), "attention_mask": mask} | self.state)
        results = dict(zip(self.outputs, values, strict=True))
        for name in list(results):
            if name.startswith("present"):
                past = "past_key_values" if name.endswith(("key", "value")) else "past"
                self.state[name.replace("present", past)] = results.pop(name)
        return results


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
