"""The rotary tables against transformers' own, near the start and at the far end of a long context."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from onnxkit.rotary import Rotary

HEAD, FACTOR = 256, 0.25


@pytest.mark.parametrize("theta", [10000.0, 1e7])
@pytest.mark.parametrize("start", [0, 4000, 262144 - 64])
def test_tables(theta: float, start: int) -> None:
    parameters = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": FACTOR}
    config = Qwen3_5TextConfig(
        head_dim=HEAD, rope_parameters=parameters | {"mrope_section": [11, 11, 10], "mrope_interleaved": True}
    )
    positions = torch.arange(start, start + 64)[None]
    cos, sin = Qwen3_5TextRotaryEmbedding(config)(torch.zeros(1), positions.expand(3, 1, -1))
    dim = int(HEAD * FACTOR)
    rotary = Rotary(theta, dim)
    assert cos.shape[-1] == dim  # both halves, of which the runtime keeps one
    assert np.abs(rotary.cos(start, start + 64) - cos[0, :, : dim // 2].numpy()).max() < 1e-6
    assert np.abs(rotary.sin(start, start + 64) - sin[0, :, : dim // 2].numpy()).max() < 1e-6
