"""The packed target's numbers, lowered to the CPU, against transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime_genai as og
import pytest
import torch

from builder.family import TargetOptions
from builder.qwen35.config import read_target_config
from builder.qwen35.names import find_names
from builder.qwen35.packed import build_packed
from builder.resolved import DTYPE_OF
from draftsmith.doctor.versions import newer_parts
from draftsmith.validation.packed_session import PackedSession
from draftsmith.validation.paged import lower_graph
from draftsmith.validation.reference import entering_streams, load_reference, operator_epsilon
from draftsmith.validation.widen import widen, widen_graph
from onnxkit.layers.precision import Precision
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.planning import plan_tensors
from tests.checkpoints import TINY, Json, variant, yarn
from tests.runtime import export, random_ids

LIMIT = 1e-5
TAPS = tuple(range(1, 9))  # all there are, the last layer's output included
ALL_TAPS = "aux_hidden_state_layers=" + ",".join(map(str, TAPS))
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16}
PACKED = "use_paged_attention=true"


@pytest.fixture(autouse=True)
def epsilon() -> Iterator[None]:
    """The operator's, throughout this file."""
    with operator_epsilon():
        yield


def packed(folder: Path, *options: str, precision: str = "bf16") -> Path:
    return export(TINY, folder, PACKED, *options, precision=precision, provider="cuda")


def lowered(folder: Path, *options: str, precision: str = "bf16") -> Path:
    widen(packed(folder / "out", *options, precision=precision), folder / "low")
    return folder / "low"


def largest_errors(folder: Path, model: Any, taps: tuple[int, ...] = TAPS) -> tuple[float, float]:
    """The largest difference of logits and of taps: two requests, prefilled in chunks, then decoded token by token."""
    ids = [random_ids(1, 1, 300)[0], random_ids(2, 1, 21)[0]]
    with torch.no_grad():
        expected = [model(input_ids=torch.tensor(row[None])).logits[0].numpy() for row in ids]
    streams = [[s[0].numpy() for s in entering_streams(model, torch.tensor(row[None]))] for row in ids]
    session = PackedSession(folder / "model.onnx", 2)
    pruned = "logits_indices" in session.inputs
    steps = [(200, 9), (90, 2)] + [(1, 1)] * 10  # the first request crosses a page of 256 within a chunk
    at, worst = [0, 0], [0.0, 0.0]
    for counts in steps:
        rows = [row[start : start + n] for row, start, n in zip(ids, at, counts, strict=True)]
        results = session(rows)
        at = [start + n for start, n in zip(at, counts, strict=True)]
        for request, (end, n) in enumerate(zip(at, counts, strict=True)):
            wanted = expected[request][end - 1 : end] if pruned else expected[request][end - n : end]
            got = results["logits"][request]
            assert got.shape == wanted.shape
            worst[0] = max(worst[0], float(np.abs(got - wanted).max()))
            if taps:
                wanted = np.concatenate([streams[request][tap][end - n : end] for tap in taps], axis=-1)
                got = results["aux_hidden_states"][request]
                assert got.shape == wanted.shape
                worst[1] = max(worst[1], float(np.abs(got - wanted).max()))
    return worst[0], worst[1]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("prune", ["true", "false"])
def test_logits_and_every_tap(tmp_path: Path, precision: str, prune: str) -> None:
    folder = lowered(tmp_path, ALL_TAPS, f"prune_lm_head={prune}", "state_update_capacity=7", precision=precision)
    logits, taps = largest_errors(folder, load_reference(TINY, TORCH[precision]))
    assert logits < LIMIT and taps < LIMIT


def test_taps_in_another_order(tmp_path: Path) -> None:
    folder = lowered(tmp_path, "aux_hidden_state_layers=8,2,5")
    _, taps = largest_errors(folder, load_reference(TINY, torch.bfloat16), (8, 2, 5))
    assert taps < LIMIT
    _, wrong = largest_errors(folder, load_reference(TINY, torch.bfloat16), (7, 1, 4))
    assert wrong > 1000 * LIMIT


def test_yarn(tmp_path: Path) -> None:
    def longer(data: Json) -> None:
        yarn(data)
        data["text_config"]["rope_parameters"]["factor"] = 8.0

    checkpoint = variant(tmp_path / "c", config=longer)
    out = export(checkpoint, tmp_path / "out", PACKED, ALL_TAPS, precision="bf16", provider="cuda")
    widen(out, tmp_path / "low")
    logits, taps = largest_errors(tmp_path / "low", load_reference(checkpoint, torch.bfloat16))
    assert logits < LIMIT and taps < LIMIT


def test_what_the_rounding_of_norms_costs(tmp_path: Path) -> None:
    """Against transformers with norms that are not rounded: bf16's share is visible, and shrinks with fp16."""
    errors = {}
    for precision, dtype in TORCH.items():
        model = load_reference(TINY, dtype)
        exact = load_reference(TINY)
        for (name, rounded), (_, unrounded) in zip(model.named_parameters(), exact.named_parameters(), strict=True):
            if name.endswith("norm.weight") and "visual" not in name:
                rounded.data = unrounded.data
        folder = lowered(tmp_path / precision, ALL_TAPS, precision=precision)
        errors[precision] = largest_errors(folder, model)[0]
    assert errors["bf16"] > 100 * LIMIT  # of the two, the format with 8 bits of mantissa
    assert errors["bf16"] / errors["fp16"] > 4  # 8 in theory


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_unstacked(tmp_path: Path, precision: str) -> None:
    """Every projection a stored tensor; queries, keys and values reach the operator apart."""
    checkpoint = Checkpoint(TINY)
    config = read_target_config(checkpoint.config)
    names = find_names(checkpoint, config)
    options = TargetOptions(4096, True, False, False, Precision.dense(DTYPE_OF[precision], stacked=False), taps=TAPS)
    model = build_packed(config, options)
    plan = plan_tensors(model.graph, checkpoint, names, names.left_out)
    for name in model.graph.initializers:
        if name.endswith("proj.weight"):
            assert names(name) in checkpoint.tensors
    for name, value in model.graph.initializers.items():
        value.const_value = plan.initializers[name].tensor
    widen_graph(model.graph)
    lower_graph(model)
    ir.save(model, tmp_path / "model.onnx", external_data="model.onnx.data")
    logits, taps = largest_errors(tmp_path, load_reference(TINY, TORCH[precision]))
    assert logits < LIMIT and taps < LIMIT


# --- the graph and its configuration ---


def test_node_count(tmp_path: Path) -> None:
    """onnxruntime-genai's own builder has 229 (benchmarks/nodes.py). 24 are reshapes, which launch nothing."""
    graph = ir.load(packed(tmp_path / "out", "state_update_capacity=7") / "model.onnx").graph
    assert len(list(graph)) == 141
    assert sum(node.op_type == "Reshape" for node in graph) == 24
    assert not [node for node in graph if node.op_type == "Constant"]


def test_taps_add_one_concatenation_and_one_output(tmp_path: Path) -> None:
    """Removing these gives the graph without them, byte for byte, in both layouts."""
    for layout, reshapes in (((PACKED,), 0), ((), 1)):
        folders = []
        for taps in ((), ("aux_hidden_state_layers=3,8",)):
            name = tmp_path / f"{len(layout)}{len(taps)}"
            folders.append(export(TINY, name, *layout, *taps, "context_length=128", precision="bf16", provider="cuda"))
        plain, tapped = (ir.load(folder / "model.onnx") for folder in folders)
        assert tapped.graph.outputs[-1].name == "aux_hidden_states"
        tapped.graph.outputs.pop()
        nodes = list(tapped.graph)
        added = nodes[len(list(plain.graph)) :]
        assert [node.op_type for node in added] == ["Concat", "Reshape"][: 1 + reshapes]
        tapped.graph.remove(reversed(added), safe=False)
        assert ir.to_proto(tapped).SerializeToString() == ir.to_proto(plain).SerializeToString()
        data = [(folder / "model.onnx.data").read_bytes() for folder in folders]
        assert data[0] == data[1]


def test_config(tmp_path: Path) -> None:
    options = ("state_update_capacity=5", "max_draft_tokens=4", "num_blocks=40", "paged_chunk_size=512")
    folder = packed(
        tmp_path / "out", *options, "prefix_caching=true", "max_scheduled_tokens=1024", "aux_hidden_state_layers=1"
    )
    config = json.loads((folder / "genai_config.json").read_text())
    linear, full = [0, 1, 2, 4, 5, 6], [3, 7]
    assert config["model"]["decoder"]["state_groups"] == [
        {"kind": "paged_kv", "layer_ids": full},
        {"kind": "fixed_conv", "layer_ids": linear, "state_update": {"capacity": 5}},
        {"kind": "fixed_recurrent", "layer_ids": linear, "state_update": {"capacity": 5, "key_head_count": 2}},
    ]
    assert config["model"]["decoder"]["state_update_capacity"] == 5
    assert config["engine"]["dynamic_batching"] == {
        "block_size": 256,
        "max_batch_size": 16,
        "num_blocks": 40,
        "max_scheduled_tokens": 1024,
        "prefix_caching": True,
    }
    assert config["speculative"] == {"max_draft_tokens": 4}
    assert config["search"]["chunk_size"] == 512
    og.Config(str(folder))


def test_config_leaves_the_rest_to_the_runtime(tmp_path: Path) -> None:
    folder = packed(tmp_path / "out")
    config = json.loads((folder / "genai_config.json").read_text())
    batching = {"block_size": 256, "max_batch_size": 16, "gpu_utilization_factor": 0.6}
    assert config["engine"] == {"dynamic_batching": batching}
    assert "speculative" not in config and "chunk_size" not in config["search"]
    assert all("state_update" not in group for group in config["model"]["decoder"]["state_groups"])
    og.Config(str(folder))


@pytest.mark.parametrize("options", [(), (PACKED, "state_update_capacity=7", "aux_hidden_state_layers=1,8")])
def test_graphs_stay_within_the_cuda_builds_schemas(tmp_path: Path, options: tuple[str, ...]) -> None:
    graph = ir.load(export(TINY, tmp_path / "out", *options, precision="bf16", provider="cuda") / "model.onnx").graph
    assert not newer_parts(graph)


def test_without_a_capacity_nothing_is_captured(tmp_path: Path) -> None:
    graph = ir.load(packed(tmp_path / "out") / "model.onnx").graph
    names = {str(value.name) for value in (*graph.inputs, *graph.outputs)}
    assert not any(name.startswith("state_update") for name in names)


@pytest.mark.parametrize(("options", "recorded"), [((), "1"), (("enable_cuda_graph=false",), "0")])
def test_cuda_graphs(tmp_path: Path, options: tuple[str, ...], recorded: str) -> None:
    """The packed graph is recorded unless it is asked not to be; the dense one is not (tests/test_export.py)."""
    config = json.loads((packed(tmp_path / "out", *options) / "genai_config.json").read_text())
    session = config["model"]["decoder"]["session_options"]
    assert session["provider_options"] == [{"cuda": {"enable_cuda_graph": recorded}}]
