"""What the target hands to its drafter: the outputs of the layers that it names, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from draftsmith.validation.packed_session import PackedSession
from draftsmith.validation.reference import entering_streams, load_reference, operator_epsilon
from draftsmith.validation.widen import widen
from tests.checkpoints import TINY
from tests.drafters import drafter, own
from tests.runtime import export, random_ids


@pytest.fixture(autouse=True)
def epsilon() -> Iterator[None]:
    with operator_epsilon():
        yield


@pytest.mark.parametrize("ids", [(1, 3, 5), (5, 1, 3), (0, 7), (7, 0, 4)])
@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_each_tap_is_a_layers_output(tmp_path: Path, kind: str, ids: tuple[int, ...]) -> None:
    """``hidden_states[id + 1]``; of the last layer, the output before the final norm, which transformers hides.

    Some producers read it behind that norm (tests/test_drafter_reading.py).
    """
    drafter(tmp_path / "d", kind, own(target_layer_ids=list(ids)))
    options = [f"drafter_path={tmp_path / 'd'}"] + ["last_tap=raw"] * (7 in ids)
    out = export(TINY, tmp_path / "out", *options, precision="bf16", provider="cuda")
    widen(out, tmp_path / "low")
    tokens = random_ids(3, 1, 40)
    model = load_reference(TINY, torch.bfloat16)
    with torch.no_grad():
        states = model(input_ids=torch.tensor(tokens), output_hidden_states=True).hidden_states
    last = entering_streams(model, torch.tensor(tokens))[-1]
    outputs = [last if layer == 7 else states[layer + 1] for layer in ids]
    (got,) = PackedSession(tmp_path / "low" / "model.onnx", 1)([tokens[0]])["aux_hidden_states"]
    assert got.shape == (40, 128 * len(ids))
    assert np.abs(got - torch.cat(outputs, dim=-1)[0].numpy()).max() < 1e-5
    for neighbour in (states[ids[0]], states[min(ids[0] + 2, 8)]):  # one layer too early, one too late
        assert np.abs(got[:, :128] - neighbour[0].numpy()).max() > 0.01
