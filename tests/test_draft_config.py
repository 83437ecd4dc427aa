"""What a drafter's configuration is read as. The reference takes the reading for right: it needs tests of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafters.checkpoint.config import LayerAttention
from drafters.checkpoint.reading import read_drafter
from onnxkit.weights.checkpoint import Checkpoint
from tests.drafters import Change, drafter, own, sliding, top

FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (top(), [(None, False)] * 2),  # is_causal false
        (top(is_causal=None), [(None, False)] * 2),
        (top(is_causal=True), [(None, True)] * 2),
        (sliding(40), [(40, False)] * 2),
        (sliding(40, causal=True), [(40, True)] * 2),
        (sliding(40, causal=None), [(40, True)] * 2),  # where nothing is said, a sliding layer is causal
        (sliding(40, FULL, SLIDING, causal=None), [(None, False), (40, True)]),
        (sliding(40, FULL, SLIDING), [(None, False), (40, False)]),
        (sliding(8), [(8, False)] * 2),  # the block itself
        (sliding(3, causal=True), [(3, True)] * 2),
        (top(layer_types=None, use_sliding_window=False, sliding_window=64), [(None, False)] * 2),
        (
            top(layer_types=None, use_sliding_window=True, sliding_window=64, max_window_layers=1),
            [(None, False), (64, False)],
        ),
        (
            top(max_window_layers=28, layer_types=[SLIDING] * 2, sliding_window=64, use_sliding_window=True),
            [(64, False)] * 2,
        ),
    ],
)
def test_attention(tmp_path: Path, change: Change, expected: list[tuple[int | None, bool]]) -> None:
    config = read_drafter(Checkpoint(drafter(tmp_path / "d", "dflash2", change)))
    assert config.layers == tuple(LayerAttention(*layer) for layer in expected)


@pytest.mark.parametrize(("kind", "drafts"), [("dflash2", 7), ("dspark", 8)])
def test_what_a_block_drafts(tmp_path: Path, kind: str, drafts: int) -> None:
    config = read_drafter(Checkpoint(drafter(tmp_path / "d", kind, own(target_layer_ids=[5, 0, 3]))))
    assert (config.block_size, config.num_draft_tokens) == (8, drafts)
    assert config.taps == (6, 1, 4) and config.mask_token_id == 630
    assert config.shortened(3).num_draft_tokens == 3
