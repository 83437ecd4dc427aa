"""Mistakes in files of weights: damaged ones, an index that is wrong, tensors that are missing, astray or misshapen."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from builder.cli import main
from tests.checkpoints import PREFIX, Json, Tensors, tie, variant, without_head
from tests.refusals import refused_checkpoint
from tests.runtime import export

# --- safetensors files and their index ---


def edit_header(path: Path, change: Callable[[Json], object]) -> None:
    """Change a safetensors file's header, its data left alone."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


NORM = f"{PREFIX}norm.weight"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:1000]),
        lambda path: path.write_bytes(path.read_bytes()[:5]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:]),
        lambda path: path.write_bytes(path.read_bytes().replace(b'{"', b"[[", 1)),
        lambda path: edit_header(path, lambda header: header[NORM].update(shape=[64])),
        lambda path: edit_header(path, lambda header: header[NORM].update(shape=[-128])),
        lambda path: edit_header(path, lambda header: header[NORM].update(dtype="F32")),
        lambda path: edit_header(path, lambda header: header[NORM].update(dtype="X9")),
        lambda path: edit_header(path, lambda header: header[NORM].pop("data_offsets")),
        lambda path: edit_header(path, lambda header: header[NORM].update(data_offsets=[0, 256])),
        lambda path: edit_header(path, lambda header: header[NORM].update(data_offsets=[10**12, 10**12 + 256])),
        lambda path: edit_header(path, lambda header: header.pop(NORM)),
    ],
)
@pytest.mark.parametrize("shards", [0, 2])
def test_damaged_safetensors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, damage: Callable[[Path], object], shards: int
) -> None:
    checkpoint = variant(tmp_path / "c", shards=shards)
    holders = [path for path in sorted(checkpoint.glob("*.safetensors")) if NORM.encode() in path.read_bytes()]
    damage(holders[0])
    assert holders[0].name in refused_checkpoint(capsys, checkpoint, tmp_path)


def test_a_tensor_twice_in_one_header(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.dumps({NORM: json.loads(data[8 : 8 + size])[NORM]})[1:-1]
    text = data[8 : 8 + size].rstrip()[:-1] + b"," + entry.encode() + b"}"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "model.safetensors" in message


def edit_index(checkpoint: Path, change: Callable[[Json], object]) -> None:
    path = checkpoint / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda index: index["weight_map"].update({NORM: "../c/model-00001-of-00002.safetensors"}), "outside"),
        (lambda index: index["weight_map"].update({NORM: "/etc/passwd"}), "outside"),
        (lambda index: index["weight_map"].update({NORM: "a/../../x.safetensors"}), "outside"),
        (lambda index: index["weight_map"].update({NORM: "..\\x.safetensors"}), "outside"),
        (lambda index: index["weight_map"].update({NORM: ""}), "outside"),
        (lambda index: index["weight_map"].update({NORM: 5}), "outside"),
        (lambda index: index["weight_map"].update({NORM: "model-00009-of-00002.safetensors"}), "model-00009"),
        (lambda index: index["weight_map"].pop(NORM), NORM),
        (lambda index: index.pop("weight_map"), "weight_map"),
        (lambda index: index.update(weight_map=[]), "weight_map"),
    ],
)
def test_wrong_index(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: Callable[[Json], object], expected: str
) -> None:
    checkpoint = variant(tmp_path / "c", shards=2)
    edit_index(checkpoint, change)
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert expected in message and "model.safetensors.index.json" in message


HEAD = "lm_head.weight"
UNREAD = "mtp.fc.weight"
FIRST, ABSENT = "model-00001-of-00002.safetensors", "model-00009-of-00009.safetensors"


@pytest.mark.parametrize("name", ["ghost", "model.visual.ghost", "mtp.ghost", UNREAD])
@pytest.mark.parametrize("shard", [FIRST, ABSENT])
def test_an_index_that_is_wrong_of_what_no_graph_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, shard: str
) -> None:
    """It names what no shard holds, as where a part was left out: a note."""
    checkpoint = variant(tmp_path / "c", shards=2, tensors=lambda weights: weights.pop(UNREAD))
    edit_index(checkpoint, lambda index: index["weight_map"].update({name: shard}))
    export(checkpoint, tmp_path / "out")
    out = capsys.readouterr().out
    assert f"Note: model.safetensors.index.json: {name}: " in out and shard in out


@pytest.mark.parametrize("name", [UNREAD, "another.weight"])
def test_an_index_that_omits_what_no_graph_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    checkpoint = variant(tmp_path / "c", shards=2, tensors=lambda weights: weights.update({name: torch.zeros(4, 4)}))
    edit_index(checkpoint, lambda index: index["weight_map"].pop(name))
    export(checkpoint, tmp_path / "out")
    assert f"{name}: it stands in model-0000" in capsys.readouterr().out


def test_an_index_with_a_head_that_is_tied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No shard holds it: it is the embedding."""
    checkpoint = variant(tmp_path / "c", config=tie, shards=2, tensors=without_head)
    edit_index(checkpoint, lambda index: index["weight_map"].update({HEAD: FIRST}))
    export(checkpoint, tmp_path / "out")
    assert (
        f"{HEAD}: model.safetensors.index.json names it in {FIRST}, which does not hold it" in capsys.readouterr().out
    )


@pytest.mark.parametrize("name", [HEAD, f"{PREFIX}embed_tokens.weight", f"{PREFIX}layers.5.mlp.up_proj.weight"])
@pytest.mark.parametrize("omitted", [True, False])
def test_an_index_that_is_wrong_of_what_a_graph_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, omitted: bool
) -> None:
    checkpoint = variant(
        tmp_path / "c", shards=2, tensors=(lambda weights: None) if omitted else (lambda weights: weights.pop(name))
    )
    edit_index(
        checkpoint,
        lambda index: index["weight_map"].pop(name) if omitted else index["weight_map"].update({name: FIRST}),
    )
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert name in message and "model.safetensors.index.json" in message


def test_missing_shard(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", shards=3)
    (checkpoint / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refused_checkpoint(capsys, checkpoint, tmp_path)


# --- tensors ---

LAYER = f"{PREFIX}layers.5."
FULL_LAYER = f"{PREFIX}layers.3."


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}linear_attn.A_log",
        f"{LAYER}linear_attn.in_proj_b.weight",
        f"{LAYER}mlp.up_proj.weight",
        f"{FULL_LAYER}self_attn.q_norm.weight",
        f"{FULL_LAYER}self_attn.v_proj.weight",
        f"{PREFIX}norm.weight",
        f"{PREFIX}embed_tokens.weight",
        "lm_head.weight",
    ],
)
def test_missing_tensor(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    checkpoint = variant(tmp_path / "c", tensors=lambda weights: weights.pop(name))
    assert name in refused_checkpoint(capsys, checkpoint, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}linear_attn.conv1d.bias",
        f"{FULL_LAYER}self_attn.q_proj.bias",
        f"{PREFIX}layers.8.mlp.up_proj.weight",
        "model.extra",
        "lm_head.bias",
        "lm_head.weight_scale",
    ],
)
def test_extra_tensor(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    checkpoint = variant(tmp_path / "c", tensors=lambda weights: weights.update({name: torch.zeros(4)}))
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert name in message and "read by nothing" in message


def misshape(name: str, shape: tuple[int, ...]) -> Callable[[Tensors], None]:
    def change(weights: Tensors) -> None:
        weights[name] = torch.zeros(shape, dtype=torch.bfloat16)

    return change


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (f"{LAYER}mlp.down_proj.weight", (288, 128)),
        (f"{LAYER}linear_attn.conv1d.weight", (320, 4)),
        (f"{LAYER}linear_attn.conv1d.weight", (320, 1, 3)),
        (f"{LAYER}linear_attn.A_log", (8,)),
        (f"{LAYER}linear_attn.norm.weight", (32,)),
        (f"{FULL_LAYER}self_attn.q_proj.weight", (256, 128)),
        (f"{FULL_LAYER}self_attn.k_norm.weight", ()),
        (f"{PREFIX}embed_tokens.weight", (639, 128)),
        ("lm_head.weight", (128, 640)),
    ],
)
def test_misshapen_tensor(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    checkpoint = variant(tmp_path / "c", tensors=misshape(name, shape))
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert name in message and str(list(shape)) in message


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn, torch.uint8, torch.bool])
def test_tensor_of_another_type(capsys: pytest.CaptureFixture[str], tmp_path: Path, dtype: torch.dtype) -> None:
    name = f"{LAYER}mlp.up_proj.weight"
    checkpoint = variant(
        tmp_path / "c", tensors=lambda weights: weights.update({name: torch.zeros((288, 128), dtype=dtype)})
    )
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert name in message and "type" in message


def test_all_problems_are_named_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def change(weights: Tensors) -> None:
        del weights[f"{LAYER}mlp.up_proj.weight"]
        weights[f"{LAYER}linear_attn.A_log"] = torch.zeros(5)
        weights["stray"] = torch.zeros(1)

    message = refused_checkpoint(capsys, variant(tmp_path / "c", tensors=change), tmp_path)
    for part in ("missing (1)", "of another shape (1)", "read by nothing (1)", "stray", "A_log: [5], not [4]"):
        assert part in message


def test_two_heads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def change(weights: Tensors) -> None:
        weights["model.language_model.lm_head.weight"] = weights["lm_head.weight"].clone()

    assert "more than one LM head" in refused_checkpoint(capsys, variant(tmp_path / "c", tensors=change), tmp_path)


def test_two_embeddings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def change(weights: Tensors) -> None:
        weights["model.embed_tokens.weight"] = weights[f"{PREFIX}embed_tokens.weight"].clone()

    assert "more than once" in refused_checkpoint(capsys, variant(tmp_path / "c", tensors=change), tmp_path)


def test_a_weight_too_large_for_fp16(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Known only when the weight is read: the run stops, and leaves nothing."""
    name = f"{LAYER}mlp.up_proj.weight"

    def change(weights: Tensors) -> None:
        weights[name][5, 7] = 1e5

    checkpoint = variant(tmp_path / "c", tensors=change)
    capsys.readouterr()
    assert main(["-i", str(checkpoint), "-o", str(tmp_path / "out"), "-p", "fp16", "-e", "cuda"]) == 2
    message = capsys.readouterr().err
    assert name in message and "99840" in message and "65504" in message
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("name", [f"{LAYER}mlp.up_proj.weight", f"{LAYER}linear_attn.A_log", NORM])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_weight_that_is_not_finite(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, precision: str
) -> None:
    """Copied or converted, large or small: it is named, and taken where that is asked for."""

    def change(weights: Tensors) -> None:
        weights[name].view(-1)[2] = float("nan")

    checkpoint = variant(tmp_path / "c", tensors=change)
    arguments = ["-i", str(checkpoint), "-o", str(tmp_path / "out"), "-p", precision, "-e", "cuda"]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert name in message and "not finite" in message and [path.name for path in tmp_path.iterdir()] == ["c"]
    assert main([*arguments, "--extra_options", "allow_nonfinite=true"]) == 0
