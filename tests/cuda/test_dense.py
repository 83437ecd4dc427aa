"""Dense exports stay within what onnxruntime 1.31.1 knows: its CPU provider may lack kernels, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import TINY
from tests.cuda.stand_in import Device
from tests.cuda.test_variants import within_schemas
from tests.runtime import export

TAPS = "aux_hidden_state_layers=1,8"


@pytest.mark.parametrize("options", [(), (TAPS, "include_hidden_states=true", "prune_lm_head=false")])
@pytest.mark.parametrize(("precision", "provider"), [("bf16", "cuda"), ("fp16", "cuda"), ("fp32", "cpu")])
def test_loads(tmp_path: Path, precision: str, provider: str, options: tuple[str, ...]) -> None:
    out = export(TINY, tmp_path / "out", *options, precision=precision, provider=provider)
    said = Device().load(out).result
    assert list(said) == ["model.onnx"]
    assert all(answer is None or within_schemas(answer) for answer in said.values()), said
