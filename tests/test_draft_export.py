"""Exports of a target with a drafter: the folder, its bytes, the configuration, and what stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime_genai as og
import pytest
import torch

from drafters.checkpoint.reading import read_drafter
from draftsmith.validation.draft_session import DraftSession, Turn
from draftsmith.validation.drafter_reference import Request, draft, extend, load_drafter
from draftsmith.validation.widen import widen
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import TINY, tie, variant, without_head
from tests.drafters import Change, drafter, own, sliding, target_table, top
from tests.runtime import export
from tests.test_drafters import LIMIT, THREE_STEPS, taps

KINDS = ["dflash2", "dspark"]


def exported(
    folder: Path,
    kind: str,
    *changes: Change,
    options: tuple[str, ...] = (),
    target: Path = TINY,
    precision: str = "bf16",
) -> Path:
    if not (folder / "d").exists():
        drafter(folder / "d", kind, *changes)
    return export(target, folder / "out", f"{kind}_path={folder / 'd'}", *options, precision=precision, provider="cuda")


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "genai_config.json").read_text()))


def initializers(path: Path) -> dict[str, ir.TensorProtocol]:
    return {
        name: value.const_value
        for name, value in ir.load(path).graph.initializers.items()
        if value.const_value is not None
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_exported_files_against_the_reference(tmp_path: Path, kind: str, precision: str) -> None:
    """Pages of 256, of which the first request's context fills one and more."""
    out = exported(tmp_path, kind, precision=precision)
    widen(out, tmp_path / "low")
    config = read_drafter(Checkpoint(tmp_path / "d"))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    tables = [target_table(name).to(dtype) for name in ("embedding", "head")]
    reference = load_drafter(tmp_path / "d", config, tables[0], tables[1])
    graph = tmp_path / "low" / f"{kind}.onnx"
    window = 4104 if kind == "dflash2" else None  # what the runtime makes a ring of, since it must have one
    session = DraftSession(graph, 2, config.block_size, config.mask_token_id, window)
    requests = [Request(), Request()]
    for number, step in enumerate(THREE_STEPS):
        turns = [Turn(taps(7 * number + i, rows), anchor) for i, (rows, anchor) in enumerate(step)]
        for request, turn, result in zip(requests, turns, session(turns), strict=True):
            assert result is not None and turn.anchor is not None
            extend(reference, request, torch.from_numpy(turn.taps))
            lattice = draft(reference, request, turn.anchor)
            assert (result[0] == lattice.ids.numpy()).all()
            assert np.abs(result[1] - lattice.scores.numpy()).max() < LIMIT


# --- sizes ---


@pytest.mark.parametrize(
    ("kind", "changes", "precision", "most"),
    [
        ("dflash2", (), "bf16", 125),
        ("dflash2", (own(conv_kernel_size=3),), "fp16", 125),
        ("dspark", (), "bf16", 55),
        ("dspark", (own(markov_head_type="gated"),), "bf16", 62),
        ("dspark", (own(markov_head_type="gated"),), "fp16", 62),
    ],
)
def test_node_count(tmp_path: Path, kind: str, changes: tuple[Change, ...], precision: str, most: int) -> None:
    """onnxruntime-genai's own builder has 216 nodes of DFlash 2 and 77 of DSpark, for two layers."""
    nodes = list(ir.load(exported(tmp_path, kind, *changes, precision=precision) / f"{kind}.onnx").graph)
    assert len(nodes) <= most
    assert not [node for node in nodes if node.op_type in ("Constant", "CastLike")]


def test_small_pages(tmp_path: Path) -> None:
    """Without sinks any page will do; target and drafter have the same one, and record CUDA graphs alike."""
    folder = exported(tmp_path, "dflash2", options=("paged_block_size=16", "enable_cuda_graph=false"))
    config = config_of(folder)
    assert config["engine"]["dynamic_batching"]["block_size"] == 16
    for graph, section in (("model", "decoder"), ("dflash2", "dflash2")):
        caches = [value for value in ir.load(folder / f"{graph}.onnx").graph.inputs if str(value.name).endswith(".key")]
        assert caches and {value.shape[1] for value in caches if value.shape} == {16}
        options = config["model"][section]["session_options"]["provider_options"]
        assert options == [{"cuda": {"enable_cuda_graph": "0"}}]


# What a drafter's files hold beside the checkpoint's own tensors.
MADE = {"rotary_emb.cos", "rotary_emb.sin"}
# Bytes of the checkpoint's own tensors; those of the Markov head's gate, 7,344, are twice as many in float32.
SIZES = {"dflash2": 810_752, "dspark": 767_744, "gated": 782_432}
MADE_SUFFIXES = ("tap_rows", "tap_mask", "gated.scale")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_shared_tensors_are_written_once(tmp_path: Path, kind: str, tied: bool, gated: bool) -> None:
    target = variant(tmp_path / "t", config=tie, tensors=without_head) if tied else TINY
    changes = (own(markov_head_type="gated"),) if gated and kind == "dspark" else ()
    out = exported(tmp_path, kind, *changes, target=target)
    of_target, of_drafter = initializers(out / "model.onnx"), initializers(out / f"{kind}.onnx")
    names = ["model.embed_tokens.weight"] + ["lm_head.weight"] * (not tied)
    for name in names:
        places = [
            (tensor.location, tensor.offset, tensor.length)
            for tensor in (of_target[name], of_drafter[name])
            if isinstance(tensor, ir.ExternalTensor)
        ]
        assert len(places) == 2 and places[0] == places[1] and places[0][0] == "model.onnx.data"
    assert {name for name, tensor in of_drafter.items() if location(tensor) == "model.onnx.data"} == set(names)
    size = SIZES["gated" if changes else kind]
    check_own_bytes(out, kind, of_drafter, ["embedding", "head"][: len(names)], size)
    check_config_of_shared(out, kind, names)


def location(tensor: ir.TensorProtocol) -> str | None:
    return str(tensor.location) if isinstance(tensor, ir.ExternalTensor) else None


def check_own_bytes(
    out: Path, kind: str, of_drafter: dict[str, ir.TensorProtocol], tables: list[str], size: int
) -> None:
    """The drafter's data file is as large as what it claims, and holds neither table's bytes."""
    data = (out / f"{kind}.onnx.data").read_bytes()
    for table in tables:
        row = target_table(table)[77].view(torch.uint8).numpy().tobytes()
        assert row not in data and row in (out / "model.onnx.data").read_bytes()
    own_names = {name: t for name, t in of_drafter.items() if location(t) != "model.onnx.data"}
    made = {name for name in own_names if name in MADE or name.endswith(MADE_SUFFIXES) or name.startswith("const_")}
    made |= {name for name in own_names if name == "previous_columns"}
    claimed = sum(tensor.nbytes for name, tensor in own_names.items() if name not in made)
    assert claimed == size
    external = [tensor for tensor in own_names.values() if location(tensor) == f"{kind}.onnx.data"]
    assert len(data) == sum(tensor.nbytes for tensor in external)
    # Cosines and sines of 16 channels at 4104 positions are 262,656 bytes.
    assert 262_656 <= sum(own_names[name].nbytes for name in made) < 268_656


def check_config_of_shared(out: Path, kind: str, names: list[str]) -> None:
    model = config_of(out)["model"]
    entries = model["decoder"]["shared_initializers"]
    assert entries == model[kind]["shared_initializers"]
    assert [entry["name"] for entry in entries] == names
    data = (out / "model.onnx.data").read_bytes()
    for entry, table in zip(entries, ("embedding", "head"), strict=False):
        start, length = int(entry["offset"]), int(entry["length"])
        assert data[start : start + length] == target_table(table).view(torch.uint8).numpy().tobytes()
        assert (entry["data_type"], entry["shape"]) == (16, [640, 128])


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_differs_only_where_it_must(tmp_path: Path, kind: str) -> None:
    """It is, byte for byte, the packed target with the taps and state updates that the drafter calls for."""
    out = exported(tmp_path, kind)
    options = ("use_paged_attention=true", "aux_hidden_state_layers=2,4,6", "state_update_capacity=7")
    alone = export(TINY, tmp_path / "alone", *options, "max_draft_tokens=7", precision="bf16", provider="cuda")
    for name in ("model.onnx", "model.onnx.data", "tokenizer.json"):
        assert (out / name).read_bytes() == (alone / name).read_bytes()
    with_drafter, without = config_of(out), config_of(alone)
    del with_drafter["model"][kind], with_drafter["model"]["decoder"]["shared_initializers"]
    assert with_drafter == without


def test_by_drafter_path_and_by_kind(tmp_path: Path) -> None:
    out = exported(tmp_path, "dspark")
    other = export(TINY, tmp_path / "o", f"drafter_path={tmp_path / 'd'}", precision="bf16", provider="cuda")
    for path in out.iterdir():
        if path.name != "draftsmith.json":
            assert path.read_bytes() == (other / path.name).read_bytes()


# --- the configuration ---


@pytest.mark.parametrize("kind", KINDS)
def test_config(tmp_path: Path, kind: str) -> None:
    out = exported(tmp_path, kind)
    config = config_of(out)
    section = config["model"][kind]
    expected = {
        "filename": f"{kind}.onnx",
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_size": 32,
        "block_size": 8,
        "num_draft_tokens": {"dflash2": 7, "dspark": 8}[kind],
        "selector_top_k": {"dflash2": 4, "dspark": 16}[kind],
        "mask_token_id": 630,
        "sliding_window": {"dflash2": 4104, "dspark": -1}[kind],
        "main_aux_hidden_states": "aux_hidden_states",
        "aux_hidden_state_layers": [2, 4, 6],
    }
    assert expected.items() <= section.items()
    decoder = config["model"]["decoder"]
    assert decoder["outputs"]["aux_hidden_states"] == "aux_hidden_states"
    assert all(group["state_update"]["capacity"] == 7 for group in decoder["state_groups"][1:])
    assert config["speculative"] == {"max_draft_tokens": 7}
    assert config["search"]["do_sample"] is False and "prefix_caching" not in config["engine"]["dynamic_batching"]
    og.Config(str(out))


@pytest.mark.parametrize("kind", KINDS)
def test_config_and_graph_name_the_same(tmp_path: Path, kind: str) -> None:
    out = exported(tmp_path, kind)
    graph = ir.load(out / f"{kind}.onnx").graph
    section = config_of(out)["model"][kind]
    for part, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        names = {name % layer if "%d" in name else name for name in section[part].values() for layer in range(2)}
        assert names == {value.name for value in values}


def test_a_window_is_the_operators_own(tmp_path: Path) -> None:
    """The runtime's ring aliases pages; only the operator's window hides what lies behind it."""
    out = exported(tmp_path, "dflash2", sliding(40, "sliding_attention", "full_attention"))
    assert config_of(out)["model"]["dflash2"]["sliding_window"] == 4104
    windows = [
        node.attributes["local_window_size"].as_int() if "local_window_size" in node.attributes else None
        for node in ir.load(out / "dflash2.onnx").graph
        if node.op_type == "PagedAttention"
    ]
    assert windows == [40, None]
    out = exported(tmp_path / "all", "dflash2", sliding(40))
    assert config_of(out)["model"]["dflash2"]["sliding_window"] == 40


def test_rotary_tables_cover_a_block_at_the_end_of_the_context(tmp_path: Path) -> None:
    out = exported(tmp_path, "dflash2", options=("context_length=500",))
    assert initializers(out / "dflash2.onnx")["rotary_emb.cos"].shape == ir.Shape([508, 16])


def test_search_is_greedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = variant(tmp_path / "t")
    declared = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}
    (target / "generation_config.json").write_text(json.dumps(declared))
    out = exported(tmp_path, "dflash2", target=target)
    assert config_of(out)["search"] == {"max_length": 4096, "past_present_share_buffer": True, "do_sample": False}
    assert "temperature, top_k, repetition_penalty is left to the caller" in capsys.readouterr().out


# --- what the summary says ---


def test_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = exported(tmp_path, "dflash2", sliding(40), options=("max_batch_size=3",))
    text = capsys.readouterr().out
    assert "Drafter: DFlash 2, 7 drafts from blocks of 8 rows, a window of 40, taps 2, 4, 6" in text
    assert "multi-token prediction head: 2 tensors" in text
    assert "512 B a token; 3 requests x 2 pages of 256 tokens: 786.4 kB" in text  # 3 * 2 * 256 * 512
    assert "the room of 768 tokens of the target's cache (1024 B a token)" in text
    assert f"{(out / 'dflash2.onnx.data').stat().st_size / 1e6:.1f} MB; embedding and head, 327.7 kB" in text


@pytest.mark.parametrize(
    ("kind", "changes", "options", "expected"),
    [
        ("dflash2", (own(block_size=16),), (), "uses 7 of the 15 drafts of a block; dflash2_num_draft_tokens=7"),
        ("dspark", (), (), "uses 7 of the 8 drafts of a block; dspark_num_draft_tokens=7"),
        ("dflash2", (), ("dflash2_num_draft_tokens=3",), "blocks of 8 rows, exported with 4"),
        ("dspark", (own(enable_confidence_head=True),), (), "the confidence head is left out"),
        ("dspark", (own(enable_confidence_head=True, confidence_head_with_markov=True),), (), "confidence head"),
        ("dspark", (own(output_multiplier=0.5),), (), "output_multiplier is not applied"),
        ("dflash2", (top(max_position_embeddings=1024),), (), "made for 1024 positions, the context has 4096"),
    ],
)
def test_notes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    changes: tuple[Change, ...],
    options: tuple[str, ...],
    expected: str,
) -> None:
    exported(tmp_path, kind, *changes, options=options)
    assert expected in capsys.readouterr().out


def test_a_shorter_causal_block_needs_no_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(tmp_path, "dflash2", top(is_causal=True), options=("dflash2_num_draft_tokens=3",))
    assert "exported with 4" not in capsys.readouterr().out


def test_the_session_on_the_shipped_file_fails_for_want_of_kernels_only(tmp_path: Path) -> None:
    for kind in KINDS:
        out = exported(tmp_path / kind, kind)
        with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
            ort.InferenceSession(out / f"{kind}.onnx", providers=["CPUExecutionProvider"])


# --- the same drafter in other words ---


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("dflash2", top(architectures=["DSparkDraftModel"])),  # the tensors count
        ("dspark", top(architectures=None)),
        ("dspark", top(head_dim=None, num_attention_heads=4)),  # hidden_size over heads, as the tensors are
        ("dspark", lambda config: config.update(block_size=config["dflash_config"].pop("block_size"))),
        ("dspark", lambda config: config.update(dspark_config=config.pop("dflash_config"))),
        ("dflash2", lambda config: config.update(config.pop("dflash_config"))),
        ("dflash2", top(target_layer_ids=None, block_size=8)),  # null is absence; twice the same is once
        ("dflash2", top(rope_parameters=None, rope_theta=1e6, rope_scaling=None)),
        ("dflash2", top(partial_rotary_factor=0.25)),  # copied from the target's; a drafter rotates whole heads
        ("dflash2", top(tie_word_embeddings=True)),
    ],
)
def test_the_same_drafter_in_other_words(tmp_path: Path, kind: str, change: Change) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    heads: Change = top(num_attention_heads=4)
    drafter(first, kind, heads)
    drafter(second, kind, heads, after=change)
    outs = [
        export(TINY, tmp_path / f"out-{path.name}", f"drafter_path={path}", precision="bf16", provider="cuda")
        for path in (first, second)
    ]
    for name in (f"{kind}.onnx", f"{kind}.onnx.data", "model.onnx", "genai_config.json"):
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes()
