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

from scripts.make_tiny_drafter import make_config, make_tensors, write

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
    script = REPOSITORY / "scripts" / "make_synthetic_checkpoint.py"
    subprocess.run([sys.executable, script, folder, "--layers", "4"], check=True, stdout=subprocess.DEVNULL)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(("precision", "provider"), [("bf16", "cuda"), ("fp16", "cuda"), ("fp32", "cpu")])
def test_peak_memory(tmp_path: Path, large: Path, precision: str, provider: str) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-m", "builder", "-i", str(large), "-o", str(output), "-p", precision, "-e", provider]
    launched = [sys.executable, "-c", LAUNCHER, *command]
    peak = int(subprocess.run(launched, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout)
    assert (output / "model.onnx.data").stat().st_size > 2e9
    shutil.rmtree(output)
    assert 50e6 < peak * 1024 < LIMIT


def large_drafter(folder: Path) -> Path:
    """A DFlash 2 drafter for the 4B shape, two layers of it: 0.6 GB, half of that in the codebooks."""
    config = make_config("dflash2")
    config |= {"hidden_size": 2560, "intermediate_size": 9216, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"head_dim": 128, "vocab_size": 248320, "num_target_layers": 4}
    config["dflash_config"] |= {"target_layer_ids": [0, 1, 3], "mask_token_id": 248077, "selector_rank": 256}
    write(folder, config, make_tensors(config))
    return folder


def test_peak_memory_with_a_drafter(tmp_path: Path, large: Path) -> None:
    """The table that both graphs read is 1.3 GB: neither held nor written a second time."""
    drafter = large_drafter(tmp_path / "d")
    output = tmp_path / "out"
    options = [f"drafter_path={drafter}", "context_length=4096"]
    command = [sys.executable, "-m", "builder", "-i", str(large), "-o", str(output), "-p", "fp16", "-e", "cuda"]
    launched = [sys.executable, "-c", LAUNCHER, *command, "--extra_options", *options]
    peak = int(subprocess.run(launched, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout)
    own, source = (path.stat().st_size for path in (output / "dflash2.onnx.data", drafter / "model.safetensors"))
    assert abs(own - source) < 3e6  # rotary tables
    shutil.rmtree(output)
    assert 50e6 < peak * 1024 < LIMIT
    print(f"peak {peak * 1024 / 1e9:.2f} GB")
