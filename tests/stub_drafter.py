"""A drafter that reads nothing: it looks up, by the newest token, drafts that are right for some positions.

With it the Engine accepts some drafts and rejects others, which is what exercises the target's state updates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnxscript import GraphBuilder

from tests.runtime import VOCAB

BLOCK, DRAFTS, TOP_K = 8, 7, 4
KV_HEADS, HEAD = 1, 64
F32, I32, I64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64


def add_stub_drafter(folder: Path, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
    """Put a drafter into a lowered packed export, which needs ``aux_hidden_states``.

    Args:
        folder: The lowered export.
        texts: The whole texts that decoding should give, prompts included.
        starts: Where each prompt ends. After position ``i`` of a text the first ``5 i mod 8`` drafts are right.
    """
    config = json.loads((folder / "genai_config.json").read_text())
    page = config["engine"]["dynamic_batching"]["block_size"]
    shape = ir.load(folder / "model.onnx").graph.outputs[-1].shape
    assert shape is not None and isinstance(shape[1], int)
    graph = _graph(_table(texts, starts), page, shape[1])
    ir.save(ir.Model(graph, ir_version=10), folder / "dflash2.onnx")
    config["model"]["dflash2"] = {
        "filename": "dflash2.onnx",
        "num_hidden_layers": 1,
        "num_key_value_heads": KV_HEADS,
        "head_size": HEAD,
        "block_size": BLOCK,
        "num_draft_tokens": DRAFTS,
        "selector_top_k": TOP_K,
        "mask_token_id": VOCAB - 1,
        "sliding_window": 64,
        "inputs": {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
        "outputs": {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
        "session_options": {},
    }
    (folder / "genai_config.json").write_text(json.dumps(config))


def _table(texts: Sequence[Sequence[int]], starts: Sequence[int]) -> np.ndarray:
    """Candidates by the newest token, ``[vocab, drafts, top k]``; the first one is what the scores choose."""
    table = np.zeros((VOCAB, DRAFTS, TOP_K), np.int32)
    for text, start in zip(texts, starts, strict=True):
        for i in range(start - 1, len(text) - DRAFTS - 1):
            for j, token in enumerate(text[i + 1 : i + 1 + DRAFTS]):
                right = j < (5 * i) % 8
                table[text[i], j] = [token if right else (token + 1) % VOCAB, 1, 2, 3]
    return table


def _graph(table: np.ndarray, page: int, width: int) -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 22}, name="stub")
    builder = GraphBuilder(graph)
    op = builder.op
    ids = builder.input("input_ids", I64, ["block_rows"])
    builder.input("aux_hidden_states", F32, ["context_rows", width])
    for name in ("q_row_map", "qkv_row_map"):
        builder.input(name, I32, ["rows"])
    builder.input("block_row_index", I32, ["block_rows"])
    builder.input("cumulative_sequence_lengths", I32, ["batch_plus_one"])
    builder.input("past_sequence_lengths", I32, ["batch"])
    builder.input("block_table", I32, ["batch", "columns"])
    builder.input("attention_metadata", I32, [3])
    caches = [
        builder.input(f"past_key_values.0.{part}", F32, ["pages", page, KV_HEADS, HEAD]) for part in ("key", "value")
    ]
    anchors = op.Gather(op.Reshape(ids, [-1, BLOCK]), 0, axis=1)
    first = np.zeros((VOCAB, DRAFTS, TOP_K, TOP_K), np.float32)
    first[..., 0] = 1
    looked_up = [
        op.Gather(builder.initializer(ir.tensor(values, name=name)), anchors)
        for name, values in (("candidates", table), ("scores", first))
    ]
    outputs: list[tuple[str, ir.Value, ir.DataType, list[int | str]]] = [
        ("draft_candidate_ids", looked_up[0], I32, ["slots", DRAFTS, TOP_K]),
        ("draft_scores", looked_up[1], F32, ["slots", DRAFTS, TOP_K, TOP_K]),
        ("present.0.key", op.Identity(caches[0]), F32, ["pages", page, KV_HEADS, HEAD]),
        ("present.0.value", op.Identity(caches[1]), F32, ["pages", page, KV_HEADS, HEAD]),
    ]
    for name, value, dtype, shape in outputs:
        value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)
        graph.outputs.append(value)
    return graph
