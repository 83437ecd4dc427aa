"""Each field of a drafter's configuration changes its graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from drafters.checkpoint.config import DFlash2, DrafterConfig, LayerAttention
from drafters.checkpoint.mask_row import MaskRow
from tests.dialects import written
from tests.planned import (
    Headers,
    Json,
    graph_text,
    headers_of,
    plan_drafter,
)


def other_fields() -> list[tuple[str, Any]]:
    """For each field of a drafter's configuration, a value that the tiny one has not."""
    layer = LayerAttention
    return [
        ("hidden_size", 256),
        ("intermediate_size", 225),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 1),
        ("head_dim", 64),
        ("rms_norm_eps", 1e-5),
        ("vocab_size", 641),
        ("layers", (layer(40, False), layer(None, False))),
        ("layers", (layer(None, True), layer(None, False))),
        ("target_layer_ids", (1, 3)),
        ("block_size", 9),
        ("top_k", 5),
        ("input_embedding_scale", 0.5),
        ("variant", DFlash2(3, 16, 24)),
        ("variant", DFlash2(2, 32, 24)),
        ("variant", DFlash2(2, 16, 25)),
        ("variant", DFlash2(2, 16, 24, output_multiplier=0.5)),
        ("variant", DFlash2(2, 16, 24, final_logit_softcapping=0.5)),
        ("attention_bias", True),
        ("attention_sinks", True),
        ("own_embedding", True),
        ("own_head", True),
        ("mask_row", MaskRow(np.ones(128, np.float32))),
    ]


def test_each_field_changes_the_graph() -> None:
    """But for the rotary embedding, whose tables are tested where they are made, and what the runtime is told."""
    config = plan_drafter(*_dflash2()).config
    texts = {"": graph_text(config)}
    for number, (field, value) in enumerate(other_fields()):
        assert getattr(config, field) != value
        texts[f"{field} {number}"] = graph_text(replace(config, **{field: value}))
    assert len(set(texts.values())) == len(texts)
    tested = {field for field, _ in other_fields()}
    elsewhere = {"rotary", "mask_token_id", "max_position_embeddings", "draft_vocab_size", "notes"}
    assert tested | elsewhere == set(DrafterConfig.__dataclass_fields__)


def _dflash2() -> tuple[Json, Headers, None]:
    config, tensors = written("z-lab, generation 2", "dflash2")
    return config, headers_of(tensors), None
