"""Mistakes of a user: each ends with exit 2 and one message that names the place, and the output stays as it was."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from builder.cli import main
from tests.checkpoints import PREFIX, TINY, Json, Tensors, tie, variant, without_head
from tests.runtime import export


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a refusal; sees that it is one block with a place, and that nothing else was printed."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and "Traceback" not in err
    for label in ("where:", "found:", "accepted:", "to do:"):
        assert label in err
    return err


def refused_checkpoint(capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path, *options: str) -> str:
    """The message with which a checkpoint is refused; sees that no output was begun."""
    extra = ["--extra_options", *options] if options else []
    output = tmp_path / "out"
    before = sorted(tmp_path.rglob("*"))
    message = refused(capsys, "-i", checkpoint, "-o", output, "-p", "fp32", "-e", "cpu", *extra)
    assert sorted(tmp_path.rglob("*")) == before
    return message


# --- the command line ---


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["-o/--output", "-p/--precision", "-e/--execution_provider"]),
        (["-o", "out", "-p", "fp32", "-e", "cpu"], ["neither -i nor -m"]),
        (["-i", TINY, "-m", "Qwen/Qwen3.5-4B", "-o", "out", "-p", "fp32", "-e", "cpu"], ["named twice", "Qwen3.5-4B"]),
        (["-i", TINY, "-o", "out", "-p", "fp23", "-e", "cpu"], ["-p", "'fp23'", "Did you mean fp32?"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cudo"], ["-e", "'cudo'", "Did you mean cuda?"]),
        (["-i", TINY, "-o", "out", "-p", "int4", "-e", "cpu"], ["-p", "'int4'", "bf16 or fp16 or fp32"]),
        (["-i", TINY, "-o", "out", "-p", "bf16", "-e", "cpu"], ["-p bf16 -e cpu", "-e cpu with -p fp32"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "--extra_option", "a=1"], ["--extra_option", "_options"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "--outptu", "x"], ["--outptu", "Did you mean --output?"]),
        (["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "stray"], ["stray"]),
        (["-i"], ["expected one argument"]),
    ],
)
def test_command_line(capsys: pytest.CaptureFixture[str], arguments: list[object], expected: list[str]) -> None:
    message = refused(capsys, *arguments)
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["context_lenght=10"], ["'context_lenght'", "Did you mean context_length?"]),
        (["prune_lmhead=true"], ["Did you mean prune_lm_head?"]),
        (["zzz=1"], ["'zzz'", "context_length, include_hidden_states, prune_lm_head", "--help"]),
        (["context_length"], ["has no value", "context_length=VALUE"]),
        (["prune_lm_head"], ["prune_lm_head=VALUE"]),
        (["=5"], ["not known"]),
        (["context_length="], ["'a whole number from 1".removeprefix("'")]),
        (["context_length=0"], ["'0'", "whole number from 1"]),
        (["context_length=-3"], ["'-3'"]),
        (["context_length=1.5"], ["'1.5'"]),
        (["context_length=1e3"], ["'1e3'"]),
        (["context_length=\uff14"], ["whole number"]),
        (["context_length=4097"], ["4097", "1 to 4096", "max_position_embeddings"]),
        (["prune_lm_head=maybe"], ["'maybe'", "true or false"]),
        (["include_hidden_states=2"], ["'2'", "true or false"]),
        (["context_length=8", "context_length=9"], ["given twice", "context_length=9 after context_length=8"]),
        (["prune_lm_head=true", "prune_lm_head=false"], ["given twice"]),
        (["aux_hidden_state_layers=,"], ["separated by commas"]),
        (["context_length=2147483648"], ["'2147483648'"]),
    ],
)
def test_extra_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], expected: list[str]
) -> None:
    message = refused_checkpoint(capsys, TINY, tmp_path, *options)
    for part in expected:
        assert part in message


def test_a_second_list_of_options_adds_to_the_first(tmp_path: Path) -> None:
    arguments = ["-i", str(TINY), "-o", str(tmp_path / "out"), "-p", "fp32", "-e", "cpu"]
    more = [
        "--extra_options",
        "context_length=99",
        "--extra_options",
        "include_hidden_states=true",
        "context_length=99",
    ]
    assert main([*arguments, *more]) == 0
    options = json.loads((tmp_path / "out" / "draftsmith.json").read_text())["options"]
    assert (options["context_length"], options["include_hidden_states"]) == (99, True)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (["--extra_options", "context_length=7"], ["given twice", "context_length=7 after context_length=9"]),
        (["-p", "bf16"], ["-p", "bf16 after -p fp32"]),
        (["--output", "elsewhere"], ["--output", "elsewhere after -o out"]),
        (["--input", "elsewhere"], ["--input", "elsewhere after -i"]),
    ],
)
def test_what_contradicts_itself(capsys: pytest.CaptureFixture[str], second: list[str], expected: list[str]) -> None:
    first = ["-i", TINY, "-o", "out", "-p", "fp32", "-e", "cpu", "--extra_options", "context_length=9"]
    message = refused(capsys, *first, *second)
    for part in expected:
        assert part in message


def test_a_blank_list_is_none(tmp_path: Path) -> None:
    """As scripts write it that fill in variables: the bytes are those without the option."""
    folders = [export(TINY, tmp_path / name, *options) for name, options in BLANK.items()]
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1] == contents[2]


BLANK = {"none": (), "blank": ("aux_hidden_state_layers=",), "space": ("aux_hidden_state_layers= ",)}


# --- folders and files ---


def test_no_such_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    message = refused_checkpoint(capsys, tmp_path / "nowhere", tmp_path)
    assert "does not exist" in message and "nowhere" in message


def test_input_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "not a folder" in refused_checkpoint(capsys, TINY / "config.json", tmp_path)


def test_no_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "config.json").unlink()
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "config.json" in message and "model.safetensors" in message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000, "\xff"])
def test_config_is_no_json_object(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refused_checkpoint(capsys, checkpoint, tmp_path)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_other_files_are_no_json(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / name).write_text("{,}")
    assert name in refused_checkpoint(capsys, checkpoint, tmp_path)


def test_no_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "pytorch_model.bin" in message and "model.safetensors" in message


def test_weights_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", shards=2)
    shutil.copy(TINY / "model.safetensors", checkpoint)
    assert "twice" in refused_checkpoint(capsys, checkpoint, tmp_path)


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


# --- the configuration ---


def text(**changes: object) -> Callable[[Json], None]:
    """A change of text_config; None removes a key."""

    def change(data: Json) -> None:
        for key, value in changes.items():
            if value is None:
                del data["text_config"][key]
            else:
                data["text_config"][key] = value

    return change


def rope(**changes: object) -> Callable[[Json], None]:
    """A change of rope_parameters; None removes a key."""

    def change(data: Json) -> None:
        parameters = data["text_config"]["rope_parameters"]
        for key, value in changes.items():
            if value is None:
                del parameters[key]
            else:
                parameters[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.update(architectures=["LlamaForCausalLM"]), ["LlamaForCausalLM", "Qwen3_5ForCausalLM"]),
        (lambda data: data.update(architectures=["Qwen3_5MoeForCausalLM"]), ["Qwen3_5MoeForCausalLM"]),
        (lambda data: data.update(architectures=["Qwen4ExpForCausalLM"]), ["Qwen4ExpForCausalLM"]),
        (lambda data: data.update(architectures=[]), ["architectures"]),
        (lambda data: data.update(architectures="Qwen3_5ForCausalLM"), ["architectures", "list of strings"]),
        (lambda data: data.pop("architectures"), ["architectures"]),
        (lambda data: data.pop("text_config"), ["text_config"]),
        (lambda data: data.update(text_config=7), ["text_config"]),
        (lambda data: data.update(quantization_config={"quant_method": "gptq"}), ["quantization_config", "gptq"]),
        (text(hidden_act="gelu"), ["hidden_act", "gelu", "silu"]),
        (text(attention_bias=True), ["attention_bias", "true"]),
        (text(attn_output_gate=False), ["attn_output_gate", "false"]),
        (text(hidden_size=None), ["hidden_size", "missing"]),
        (text(hidden_size=0), ["hidden_size", "0"]),
        (text(hidden_size="128"), ["hidden_size", '"128"']),
        (text(hidden_size=True), ["hidden_size", "true"]),
        (text(hidden_size=128.5), ["hidden_size", "128.5"]),
        (text(head_dim=None), ["head_dim"]),
        (text(vocab_size=[640]), ["vocab_size", "[640]"]),
        (text(rms_norm_eps=0), ["rms_norm_eps"]),
        (text(rms_norm_eps=None), ["rms_norm_eps"]),
        (text(num_key_value_heads=3), ["num_key_value_heads", "3"]),
        (text(linear_num_value_heads=3), ["linear_num_value_heads", "3"]),
        (text(linear_conv_kernel_dim=1), ["linear_conv_kernel_dim"]),
        (text(max_position_embeddings=None), ["max_position_embeddings"]),
        (text(num_hidden_layers=7), ["layer_types", "7 entries"]),
        (text(layer_types=["full_attention"] * 8), ["layer_types"]),
        (text(layer_types=["sliding_attention"] * 8), ["layer_types", "sliding_attention"]),
        (text(layer_types=None, full_attention_interval=None), ["layer_types", "full_attention_interval"]),
        (text(rope_parameters=None), ["rope_theta"]),
        (rope(rope_theta=None), ["rope_theta"]),
        (rope(rope_theta=-1), ["rope_theta", "-1"]),
        (rope(partial_rotary_factor=None), ["partial_rotary_factor"]),
        (rope(partial_rotary_factor=1.5), ["partial_rotary_factor", "1.5"]),
        (rope(partial_rotary_factor=0.26), ["partial_rotary_factor", "0.26"]),
        (rope(rope_type="linear"), ["rope_type", "linear"]),
        (rope(mrope_section=[3, 3, 3]), ["mrope_section", "8"]),
        (rope(mrope_section=8), ["mrope_section"]),
        (text(rope_theta=5000.0), ["rope_theta", "1e+07 and 5000"]),
        (text(eos_token_id="end"), ["eos_token_id", "end"]),
        (text(eos_token_id=[1, -2]), ["eos_token_id"]),
        (text(eos_token_id=640), ["text_config.eos_token_id", "640", "from 0 to 639"]),
        (lambda data: data.update(eos_token_id=[0, 999]), ["config.json: eos_token_id", "999"]),
        (text(pad_token_id=640), ["pad_token_id", "640"]),
        (lambda data: data.update(bos_token_id=2**31), ["bos_token_id", "2147483648"]),
        (lambda data: data.update(tie_word_embeddings="no"), ["tie_word_embeddings"]),
    ],
)
def test_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: Callable[[Json], object], expected: list[str]
) -> None:
    message = refused_checkpoint(capsys, variant(tmp_path / "c", config=change), tmp_path)
    for part in expected:
        assert part in message


def test_fewer_layers_than_tensors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def change(data: Json) -> None:
        data["text_config"]["num_hidden_layers"] = 7
        del data["text_config"]["layer_types"][7:]

    message = refused_checkpoint(capsys, variant(tmp_path / "c", config=change), tmp_path)
    assert f"{PREFIX}layers.7.mlp.up_proj.weight" in message or "layers.7." in message


def test_no_stop_id_anywhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", config=text(eos_token_id=None))
    (checkpoint / "generation_config.json").write_text("{}")
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "generation_config.json: eos_token_id" in message and "that ends a text" in message
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 2}')
    export(checkpoint, tmp_path / "out")


def test_a_key_twice_in_the_generation_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 2, "top_k": 20, "top_k": 40}')
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert "stands twice" in message and "top_k" in message and "generation_config.json" in message


@pytest.mark.parametrize(
    "entry",
    [
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_p": 1.5},
        {"do_sample": 1},
        {"no_repeat_ngram_size": -1},
        {"min_length": 1.5},
        {"min_p": 2},
        {"eos_token_id": [2, 640]},
    ],
)
def test_generation_config(capsys: pytest.CaptureFixture[str], tmp_path: Path, entry: Json) -> None:
    checkpoint = variant(tmp_path / "c")
    (checkpoint / "generation_config.json").write_text(json.dumps(entry))
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert f"generation_config.json: {next(iter(entry))}" in message


# --- the output folder (its own tests are in test_output.py) ---


@pytest.mark.parametrize("place", [".", "..", "sub/.."])
def test_output_is_the_input_or_its_parent(capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str) -> None:
    checkpoint = variant(tmp_path / "parent" / "c")
    (checkpoint / "sub").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refused(capsys, "-i", checkpoint, "-o", checkpoint / place, "-p", "fp32", "-e", "cpu")
    assert sorted(tmp_path.rglob("*")) == before


def test_output_holds_something_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    message = refused(capsys, "-i", TINY, "-o", output, "-p", "fp32", "-e", "cpu")
    assert "thesis.txt" in message
    assert (output / "thesis.txt").read_text() == "years of work"


def test_no_room(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=20 << 20))
    message = refused_checkpoint(capsys, TINY, tmp_path)
    assert "room" in message
