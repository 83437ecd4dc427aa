"""Mistakes in the options of the packed layout and of taps: each refused before anything is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import TINY
from tests.refusals import refused

PACKED = "use_paged_attention=true"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # taps
        (["aux_hidden_state_layers=0"], ["'0'", "from 1 to the number of layers"]),
        (["aux_hidden_state_layers=0,3"], ["'0,3'"]),
        (["aux_hidden_state_layers=-1"], ["'-1'"]),
        (["aux_hidden_state_layers=9"], ["9", "1 to 8"]),
        (["aux_hidden_state_layers=2,4,2"], ["'2,4,2'", "each once"]),
        (["aux_hidden_state_layers=2,x"], ["'2,x'"]),
        (["aux_hidden_state_layers=2;4"], ["'2;4'"]),
        (["aux_hidden_state_layers=2,"], ["'2,'"]),
        (["aux_hidden_state_layer=2"], ["Did you mean aux_hidden_state_layers?"]),
        # pages
        ([PACKED, "paged_block_size=100"], ["'100'", "power of two"]),
        ([PACKED, "paged_block_size=8"], ["'8'", "power of two from 16"]),
        ([PACKED, "paged_block_size=big"], ["'big'"]),
        # the cache
        ([PACKED, "num_blocks=10", "gpu_utilization_factor=0.5"], ["num_blocks=10 gpu_utilization_factor=0.5"]),
        ([PACKED, "gpu_utilization_factor=0"], ["'0'", "above 0"]),
        ([PACKED, "gpu_utilization_factor=1.1"], ["'1.1'"]),
        ([PACKED, "gpu_utilization_factor=nan"], ["'nan'"]),
        ([PACKED, "num_blocks=0"], ["'0'"]),
        ([PACKED, "max_batch_size=257"], ["'257'", "1 to 256"]),
        ([PACKED, "max_scheduled_tokens=0"], ["'0'"]),
        ([PACKED, "paged_chunk_size=none"], ["'none'"]),
        ([PACKED, "enable_cuda_graph=yes"], ["'yes'", "true or false"]),
        # drafts
        ([PACKED, "state_update_capacity=9"], ["'9'", "0 to 8"]),
        ([PACKED, "state_update_capacity=8", "max_draft_tokens=8"], ["'8'", "1 to 7"]),
        ([PACKED, "max_draft_tokens=4"], ["state_update_capacity=0", "Add state_update_capacity=4"]),
        ([PACKED, "state_update_capacity=3", "max_draft_tokens=4"], ["state_update_capacity=3"]),
        # options of the packed layout without it
        (["paged_block_size=256"], ["paged_block_size", PACKED]),
        (["enable_cuda_graph=true"], ["enable_cuda_graph", PACKED]),
        (["num_blocks=4", "state_update_capacity=2"], ["state_update_capacity, num_blocks", PACKED]),
        (["use_paged_attention=false", "max_batch_size=4"], ["max_batch_size", PACKED]),
    ],
)
def test_options(capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], expected: list[str]) -> None:
    output = tmp_path / "out"
    message = refused(capsys, "-i", TINY, "-o", output, "-p", "bf16", "-e", "cuda", "--extra_options", *options)
    for part in expected:
        assert part in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("precision", "provider"), [("fp32", "cpu")])
def test_precision(capsys: pytest.CaptureFixture[str], tmp_path: Path, precision: str, provider: str) -> None:
    arguments = ["-i", TINY, "-o", tmp_path / "out", "-p", precision, "-e", provider, "--extra_options", PACKED]
    message = refused(capsys, *arguments)
    assert f"-p {precision} -e {provider}" in message and "bf16 or fp16 with -e cuda" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layout", [[], ["--extra_options", PACKED]])
def test_no_float32_on_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path, layout: list[str]) -> None:
    """Its attention would run on the CPU, with the cache copied there and back for every token."""
    message = refused(capsys, "-i", TINY, "-o", tmp_path / "out", "-p", "fp32", "-e", "cuda", *layout)
    for part in ("-p fp32 -e cuda", "-e cuda with -p bf16 or fp16", "no float32 attention"):
        assert part in message
    assert not list(tmp_path.iterdir())
