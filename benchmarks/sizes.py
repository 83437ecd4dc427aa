"""Disk and memory of exporting the public releases, by their size: sizes.py WORK_DIR

Bytes are what an export plans to write for the tables of tensors in tests/assets/real-configs: no weight is needed for
that. Peak memory is measured on the same widths with four layers, whose weights are holes in a file (up to 8 GB are
written to WORK_DIR, and deleted): more layers add nothing to what is held at a time. Prints a table in Markdown.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.memory import OURS, PACKED, measure
from builder.export import plan
from builder.options import BuildOptions
from tests.test_real_configs import case, tensors, write

RELEASES = ("Qwen3.5_0.8B", "Qwen3.5_4B", "Qwen3.5_9B", "Qwen3.6_27B")
LAYERS = 4


def planned(checkpoint: Path, precision: str, provider: str) -> int:
    """Bytes of weights of an export."""
    packed = provider == "cuda"
    output = checkpoint.parent / "none"
    options = BuildOptions(
        input=checkpoint, output=output, precision=precision, provider=provider, use_paged_attention=packed
    )
    return plan(options, checkpoint).weights()


def shallow(data: dict[str, Any]) -> dict[str, Any]:
    """The release with its first layers only."""
    config = json.loads(json.dumps(data["config"]))
    text = config.get("text_config", config)
    text["num_hidden_layers"], text["layer_types"] = LAYERS, text["layer_types"][:LAYERS]
    kept = [
        [name, dtype, shape]
        for name, dtype, shape in tensors(data["tensors"])
        if ".layers." not in name or int(name.split(".layers.")[1].split(".")[0]) < LAYERS or "language" not in name
    ]
    return data | {"config": config, "tensors": kept}


def main() -> None:
    """Measure and print."""
    print("| release | weights of the text model | checkpoint | export, bf16 or fp16 | export, fp32 | peak memory |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        for number, name in enumerate(RELEASES):
            data, work = case(name), Path(folder) / str(number)
            work.mkdir()
            checkpoint = write(data, work / "whole")
            entries = list(tensors(data["tensors"]))
            text = sum(prod(shape) for tensor, _, shape in entries if "visual" not in tensor and "mtp" not in tensor)
            stored = (checkpoint / "model.safetensors").stat().st_size
            half, full = planned(checkpoint, "bf16", "cuda"), planned(checkpoint, "fp32", "cpu")
            small = write(shallow(data), work / "shallow")
            peak, _ = measure(OURS, small, work / "out", ["-p", "bf16", "-e", "cuda", *PACKED])
            shutil.rmtree(work)
            sizes = " | ".join(f"{size / 1e9:.1f} GB" for size in (stored, half, full))
            print(
                f"| {name.replace('_', ' ')} | {text / 1e9:.1f} billion | {sizes} | {peak / 1e9:.2f} GB |", flush=True
            )


if __name__ == "__main__":
    main()
