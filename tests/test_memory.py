"""Peak memory of an export of a large model. The 4B model itself is measured by benchmarks/memory.py.

Four layers of the 4B shape are 2.2 GB, 1.3 of them in one table; more layers add nothing to what is held at a time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.synthetic import write as write_synthetic
from tests.synthetic import write_headers
from tests.tiny_drafter import make_config, make_tensors, write

REPOSITORY = Path(__file__).parent.parent
LIMIT = 600e6

# Runs a command and prints its peak resident kilobytes. A process starts with its parent's peak, so that pytest's own,
# with torch in it, must not be the parent.
LAUNCHER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("large")
    write_synthetic(folder, layers=4)
    yield folder
    shutil.rmtree(folder)


def peak_of(checkpoint: Path, output: Path, precision: str, provider: str, *options: str) -> int:
    """Bytes that an export holds at the most."""
    command = [sys.executable, "-m", "builder", "-i", checkpoint, "-o", output, "-p", precision, "-e", provider]
    more = ["--extra_options", *options] if options else []
    launched = [sys.executable, "-c", LAUNCHER, *map(str, command), *more]
    done = subprocess.run(launched, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE)
    return 1024 * int(done.stdout)


def test_peak_memory_of_holes(tmp_path: Path) -> None:
    """The same shape, its weights a hole in the file; every byte is converted and written."""
    checkpoint, output = write_headers(tmp_path / "checkpoint", 4), tmp_path / "out"
    peak = peak_of(checkpoint, output, "fp16", "cuda")
    assert (output / "model.onnx.data").stat().st_size > 2e9
    shutil.rmtree(output)
    assert 50e6 < peak < LIMIT


@pytest.mark.nightly
@pytest.mark.parametrize(("precision", "provider"), [("bf16", "cuda"), ("fp16", "cuda"), ("fp32", "cpu")])
def test_peak_memory(tmp_path: Path, large: Path, precision: str, provider: str) -> None:
    output = tmp_path / "out"
    peak = peak_of(large, output, precision, provider)
    assert (output / "model.onnx.data").stat().st_size > 2e9
    shutil.rmtree(output)
    assert 50e6 < peak < LIMIT


def large_drafter(folder: Path) -> Path:
    """A DFlash 2 drafter for the 4B shape, two layers of it: 0.6 GB, half of that in the codebooks."""
    config = make_config("dflash2")
    config |= {"hidden_size": 2560, "intermediate_size": 9216, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"head_dim": 128, "vocab_size": 248320, "num_target_layers": 4}
    config["dflash_config"] |= {"target_layer_ids": [0, 1, 3], "mask_token_id": 248077, "selector_rank": 256}
    write(folder, config, make_tensors(config))
    return folder


@pytest.mark.nightly
def test_peak_memory_with_a_drafter(tmp_path: Path, large: Path) -> None:
    """The table that both graphs read is 1.3 GB: neither held nor written a second time."""
    drafter, output = large_drafter(tmp_path / "d"), tmp_path / "out"
    peak = peak_of(large, output, "fp16", "cuda", f"drafter_path={drafter}", "context_length=4096")
    own, source = (path.stat().st_size for path in (output / "dflash2.onnx.data", drafter / "model.safetensors"))
    assert abs(own - source) < 3e6  # rotary tables
    shutil.rmtree(output)
    assert 50e6 < peak < LIMIT
