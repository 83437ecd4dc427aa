"""The dense target's numbers, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from builder.family import TargetOptions
from builder.qwen35.config import read_target_config
from builder.qwen35.dense import build_dense
from builder.qwen35.names import find_names
from builder.resolved import DTYPE_OF
from draftsmith.validation.dense_session import DenseSession
from draftsmith.validation.reference import entering_streams, load_reference
from draftsmith.validation.session import Array
from draftsmith.validation.widen import widen
from onnxkit.layers.precision import Precision
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.save import save
from tests.checkpoints import (
    PREFIX,
    TINY,
    Json,
    Tensors,
    text_only,
    text_only_names,
    tie,
    variant,
    without_head,
    yarn,
)
from tests.runtime import export, random_ids

LIMIT = 2e-5
PROMPT, STEPS = 64, 32


def logits_of(model: Any, ids: Array) -> Array:
    """transformers' logits of every token."""
    with torch.no_grad():
        return model(input_ids=torch.tensor(ids)).logits.numpy()


def largest_error(folder: Path, model: Any, batch: int = 1) -> float:
    """The largest difference of logits over a prompt and then single tokens with carried state."""
    ids = random_ids(batch, batch, PROMPT + STEPS)
    expected = logits_of(model, ids)
    session = DenseSession(folder / "model.onnx", batch)
    position, worst = 0, 0.0
    for count in [PROMPT] + [1] * STEPS:
        logits = session(ids[:, position : position + count])["logits"]
        position += count
        wanted = expected[:, position - logits.shape[1] : position]
        assert logits.shape == wanted.shape
        worst = max(worst, float(np.abs(logits - wanted).max()))
    return worst


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_of_every_token(full_export: Path, reference: Any, batch: int) -> None:
    assert largest_error(full_export, reference, batch) < LIMIT


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_of_the_last_token(tiny_export: Path, reference: Any, batch: int) -> None:
    assert largest_error(tiny_export, reference, batch) < LIMIT


def test_a_prompt_in_parts(full_export: Path, reference: Any) -> None:
    """Chunks of any size, one of a single token among them: the convolution's state is shorter than some of them."""
    ids = random_ids(5, 1, 48)
    session = DenseSession(full_export / "model.onnx", 1)
    parts = [session(ids[:, start:stop])["logits"] for start, stop in ((0, 2), (2, 3), (3, 30), (30, 48))]
    assert np.abs(np.concatenate(parts, axis=1) - logits_of(reference, ids)).max() < LIMIT


def test_hidden_states_are_those_behind_the_final_norm(full_export: Path, reference: Any) -> None:
    ids = random_ids(6, 2, 20)
    with torch.no_grad():
        expected = reference.model(input_ids=torch.tensor(ids)).last_hidden_state.numpy()
    assert np.abs(DenseSession(full_export / "model.onnx", 2)(ids)["hidden_states"] - expected).max() < LIMIT


def test_yarn(tmp_path: Path, reference: Any) -> None:
    checkpoint = variant(tmp_path / "c", config=yarn)
    folder = export(checkpoint, tmp_path / "out")
    assert largest_error(folder, load_reference(checkpoint)) < LIMIT
    assert largest_error(folder, reference) > 1000 * LIMIT
    config: Json = json.loads((folder / "genai_config.json").read_text())
    assert config["model"]["context_length"] == 256


def test_every_tap(tmp_path: Path, reference: Any) -> None:
    """The residual stream entering each layer; the last number stands for what enters the final norm."""
    taps = (8, 1, 2, 3, 4, 5, 6, 7)
    folder = export(TINY, tmp_path / "out", "aux_hidden_state_layers=" + ",".join(map(str, taps)))
    ids = random_ids(3, 2, 30)
    streams = entering_streams(reference, torch.tensor(ids))
    expected = torch.cat([streams[tap] for tap in taps], dim=-1).numpy()
    got = DenseSession(folder / "model.onnx", 2)(ids)["aux_hidden_states"]
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < LIMIT


def random_head(weights: Tensors) -> None:
    weights["lm_head.weight"] = (0.03 * torch.randn(640, 128)).to(torch.bfloat16)


def float32(weights: Tensors) -> None:
    for name in weights:
        weights[name] = weights[name].float()


def float32_decays(weights: Tensors) -> None:
    """As releases store them: everything in bf16 but the decay's parameters."""
    for name in weights:
        if name.endswith(("A_log", "dt_bias")):
            weights[name] = weights[name].float()


def nested_head(weights: Tensors) -> None:
    weights["model.language_model.lm_head.weight"] = weights.pop("lm_head.weight")


@pytest.mark.parametrize(
    ("config", "tensors", "shards"),
    [
        (text_only, text_only_names, 0),
        (tie, without_head, 0),
        (tie, random_head, 0),
        (None, None, 3),
        (None, float32, 0),
        (None, float32_decays, 2),
    ],
    ids=["text-only", "tied", "tied-but-different", "shards", "float32", "float32-decays"],
)
def test_checkpoints_of_other_kinds(tmp_path: Path, config: Any, tensors: Any, shards: int) -> None:
    checkpoint = variant(tmp_path / "checkpoint", config=config, tensors=tensors, shards=shards)
    folder = export(checkpoint, tmp_path / "out")
    assert largest_error(folder, load_reference(checkpoint)) < LIMIT


def test_a_head_under_another_prefix_is_found(tmp_path: Path, reference: Any) -> None:
    checkpoint = variant(tmp_path / "checkpoint", tensors=nested_head)
    assert largest_error(export(checkpoint, tmp_path / "out"), reference) < LIMIT


def test_a_tied_table_is_written_once(tmp_path: Path) -> None:
    """Whether the head is left out of the checkpoint or stored as a second copy, the bytes are the same."""
    table = f"{PREFIX}embed_tokens.weight"

    def copied_head(weights: Tensors) -> None:
        weights["lm_head.weight"] = weights[table].clone()

    folders = [
        export(variant(tmp_path / name, config=tie, tensors=change), tmp_path / f"{name}-out")
        for name, change in (("left-out", without_head), ("copied", copied_head))
    ]
    untied = export(TINY, tmp_path / "untied")
    sizes = [(folder / "model.onnx.data").stat().st_size for folder in (*folders, untied)]
    assert sizes[0] == sizes[1] == sizes[2] - 640 * 128 * 4
    assert (folders[0] / "model.onnx").read_bytes() == (folders[1] / "model.onnx").read_bytes()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_cuda_precisions_widened(tmp_path: Path, precision: str) -> None:
    """The copy equals transformers with the weights rounded as stored; and the rounding is really there."""
    folder = export(TINY, tmp_path / "out", precision=precision, provider="cuda")
    widen(folder, tmp_path / "wide")
    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert largest_error(tmp_path / "wide", load_reference(TINY, torch_dtype)) < LIMIT
    assert largest_error(tmp_path / "wide", load_reference(TINY)) > LIMIT


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_graphs_keep_the_recurrence_in_float32(tmp_path: Path, precision: str) -> None:
    model = ir.load(export(TINY, tmp_path / "out", precision=precision, provider="cuda") / "model.onnx")
    low = DTYPE_OF[precision]
    dtypes = {value.name: value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    assert dtypes["past.0.recurrent"] == dtypes["present.0.recurrent"] == ir.DataType.FLOAT
    assert dtypes["logits"] == ir.DataType.FLOAT
    assert dtypes["past.0.conv"] == dtypes["past_key_values.3.key"] == low
    weights = {name: value.dtype for name, value in model.graph.initializers.items()}
    assert {dtype for name, dtype in weights.items() if name.endswith("proj.weight")} == {low}
    exact = {name for name, dtype in weights.items() if dtype == ir.DataType.FLOAT}
    assert {name.rsplit(".", 1)[-1] for name in exact} == {"dt_bias", "decay_scale", "scale"}


def test_without_stacking_every_projection_is_a_stored_tensor(tmp_path: Path, reference: Any) -> None:
    checkpoint = Checkpoint(TINY)
    config = read_target_config(checkpoint.config)
    names = find_names(checkpoint, config)
    precision = Precision.dense(ir.DataType.FLOAT, stacked=False)
    model = build_dense(config, TargetOptions(128, False, False, False, precision))
    plan = plan_tensors(model.graph, checkpoint, names, names.left_out)
    for name in model.graph.initializers:
        if name.endswith("proj.weight"):
            assert names(name) in checkpoint.tensors
    save(model, tmp_path / "model.onnx", plan)
    assert largest_error(tmp_path, reference) < LIMIT


def test_context_length_sizes_tables_and_search(tmp_path: Path, reference: Any) -> None:
    folder = export(TINY, tmp_path / "out", "context_length=96")
    assert largest_error(folder, reference) < LIMIT  # 96 positions are used
    model = ir.load(folder / "model.onnx")
    shape = model.graph.initializers["rotary_emb.cos"].shape
    assert shape is not None and list(shape) == [96, 8]
    config: Json = json.loads((folder / "genai_config.json").read_text())
    assert config["model"]["context_length"] == config["search"]["max_length"] == 96


def test_node_count(tiny_export: Path) -> None:
    """What the README says of the tiny graph; a node more should be a decision."""
    assert len(list(ir.load(tiny_export / "model.onnx").graph)) == 216
