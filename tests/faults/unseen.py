"""Faults that no short run shows: rows and bits that are seldom read, settings and files that no run reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.faults import Fault
from tests.faults.listing import BOTH, D2, DS, configured, of_decoder, of_drafter, of_part

Apply = Callable[[Path], object]
Array = np.ndarray[Any, Any]


def drafter_file(folder: Path) -> str:
    """The name of the drafter's graph."""
    return next(path.name for path in folder.glob("d*.onnx"))


def stored(part: str, change: Callable[[Array], object], graph: str = "model.onnx") -> Apply:
    """Change, in place, the values of a tensor where they are stored: the first one whose name ends with ``part``."""

    def apply(folder: Path) -> None:
        file = folder / (drafter_file(folder) if graph == "drafter" else graph)
        model = onnx.load(file, load_external_data=False)
        tensor = next(t for t in model.graph.initializer if t.name.removesuffix(".weight").endswith(part))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:  # in the data file
            offset = int(place.get("offset", 0))
            array: Array = np.memmap(folder / place["location"], dtype, "r+", offset, tuple(tensor.dims))
        else:
            array = np.frombuffer(bytearray(tensor.raw_data), dtype).reshape(tensor.dims)
        before = array.tobytes()
        change(array)
        assert array.tobytes() != before
        if isinstance(array, np.memmap):
            array.flush()
        else:
            tensor.raw_data = array.tobytes()
            onnx.save(model, file)

    return apply


def fill(value: float, rows: slice = slice(None)) -> Callable[[Array], object]:
    """Put one value in all of some rows."""

    def change(array: Array) -> None:
        array[rows] = value

    return change


def times(factor: float, rows: slice) -> Callable[[Array], object]:
    """Multiply some rows."""

    def change(array: Array) -> None:
        array[rows] = (array[rows].astype(np.float32) * factor).astype(array.dtype)

    return change


def lowest_bit(array: Array) -> None:
    """Flip the lowest bit of the element in the middle."""
    bits = array.reshape(-1).view(f"u{array.dtype.itemsize}")
    bits[len(bits) // 2] ^= 1


def swapped_rows(first: int, second: int) -> Callable[[Array], object]:
    """Exchange two rows."""

    def change(array: Array) -> None:
        array[[first, second]] = array[[second, first]]

    return change


def proto(change: Callable[[onnx.ModelProto], object], graph: str = "model.onnx") -> Apply:
    """Change a graph's file, its weights left where they are."""

    def apply(folder: Path) -> None:
        file = folder / (drafter_file(folder) if graph == "drafter" else graph)
        model = onnx.load(file, load_external_data=False)
        change(model)
        onnx.save(model, file)

    return apply


def unread_node(model: onnx.ModelProto) -> None:
    """A node whose output nothing reads."""
    model.graph.node.add(op_type="Neg", name="unread", input=[model.graph.node[-1].output[0]], output=["unread"])


def opset(model: onnx.ModelProto) -> None:
    """An older version of the standard operators."""
    next(entry for entry in model.opset_import if not entry.domain).version = 21


def symbolic(model: onnx.ModelProto) -> None:
    """Two sizes of an input that are one by their name."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = "n"


def own_head(folder: Path) -> None:
    """The drafter's head as a second copy in its own file, shared no more: the same numbers in twice the memory."""
    name = drafter_file(folder)
    model = onnx.load(folder / name, load_external_data=False)
    head = next(tensor for tensor in model.graph.initializer if tensor.name == "lm_head.weight")
    place = {entry.key: entry for entry in head.external_data}
    start, length = int(place["offset"].value), int(place["length"].value)
    data = (folder / place["location"].value).read_bytes()[start : start + length]
    with (folder / f"{name}.data").open("ab") as file:
        file.write(b"\0" * (-file.tell() % 4096))
        place["location"].value, place["offset"].value = f"{name}.data", str(file.tell())
        file.write(data)
    onnx.save(model, folder / name)
    path = folder / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for section in config["model"].values():
        if isinstance(section, dict):
            section["shared_initializers"] = [e for e in section["shared_initializers"] if e["name"] != head.name]
    path.write_text(json.dumps(config), encoding="utf-8")


def without_drafter(folder: Path) -> None:
    """The drafter taken out of files and configuration: the target alone runs, slowly."""
    path = folder / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for role in ("dflash2", "dspark"):
        config["model"].pop(role, None)
        for file in folder.glob(f"{role}.onnx*"):
            file.unlink()
    path.write_text(json.dumps(config), encoding="utf-8")


def json_file(name: str, change: Callable[[dict[str, Any]], object]) -> Apply:
    """Change a JSON file."""

    def apply(folder: Path) -> None:
        data = json.loads((folder / name).read_text(encoding="utf-8"))
        change(data)
        (folder / name).write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    return apply


def rolled_ids(data: dict[str, Any]) -> None:
    """Every token one id on."""
    vocab = data["model"]["vocab"]
    ids = list(vocab.values())
    data["model"]["vocab"] = dict(zip(vocab, [*ids[1:], ids[0]], strict=True))


def two_ids(data: dict[str, Any]) -> None:
    """Two rare tokens in each other's place."""
    vocab = data["model"]["vocab"]
    first, second = list(vocab)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]


def append(name: str, content: bytes) -> Apply:
    """Add to a file, or make it."""

    def apply(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(content)

    return apply


def remove(*names: str) -> Apply:
    """Remove files."""

    def apply(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return apply


def outside_filename(folder: Path) -> None:
    """The target's graph in a folder beside the export."""
    other = folder.parent / "other"
    other.mkdir()
    for path in folder.glob("model.onnx*"):
        path.rename(other / path.name)
    configured(of_decoder(filename="../other/model.onnx"))(folder)


def linked_file(folder: Path) -> None:
    """A file that is a link to one outside."""
    other = shutil.move(folder / "tokenizer_config.json", folder.parent / "elsewhere.json")
    (folder / "tokenizer_config.json").symlink_to(other)


def manifest_option(**values: object) -> Apply:
    """Another record of what was asked for."""
    return json_file("draftsmith.json", lambda data: data["options"].update(values))


LONG = slice(700, 1000)  # positions that no short run reaches
RARE = slice(637, 640)  # tokens of the pair's vocabulary that no text has
LAYER = "model.layers.4.mlp.down_proj"

NUMBERS: list[tuple[str, Apply, tuple[str, ...]]] = [
    ("NaN in the selector's codebook", stored("successor_codebook", fill(np.nan), "drafter"), D2),
    ("NaN in the selector's projection", stored("hidden_projection", fill(np.nan), "drafter"), D2),
    ("NaN in a Markov table", stored("markov_w2", fill(np.nan), "drafter"), DS),
    ("NaN for a rare token in the codebook", stored("predecessor_codebook", fill(np.nan, RARE), "drafter"), D2),
    ("infinity for a rare token in a Markov table", stored("markov_w1", fill(np.inf, RARE), "drafter"), DS),
    ("target: rotary rows of late positions", stored("cos", times(0.5, LONG)), BOTH),
    ("target: one rotary row", stored("sin", times(-1.0, slice(900, 901))), BOTH),
    ("drafter: rotary rows of late positions", stored("sin", times(1.5, LONG), "drafter"), BOTH),
    ("a rare token's codebook row", stored("successor_codebook", times(3.0, RARE), "drafter"), D2),
    ("rare tokens' Markov rows swapped", stored("markov_w2", swapped_rows(638, 639), "drafter"), DS),
    ("the lowest bit of a layer's weight", stored(LAYER, lowest_bit), BOTH),
    ("the lowest bit of a norm", stored("model.layers.3.input_layernorm", lowest_bit), BOTH),
    ("the lowest bit of the drafter's fusion", stored("fc", lowest_bit, "drafter"), BOTH),
    ("the lowest bit of the context's norm", stored("hidden_norm", lowest_bit, "drafter"), BOTH),
    ("the lowest bit of a convolution's kernel", stored("kernel_projection", lowest_bit, "drafter"), D2),
    ("the lowest bit of a late rotary row", stored("cos", lowest_bit), BOTH),
]

GRAPHS: list[tuple[str, Apply, tuple[str, ...]]] = [
    ("a node that nothing reads", proto(unread_node), BOTH),
    ("an older opset", proto(opset, "drafter"), BOTH),
    ("all sizes of a graph's inputs named alike", proto(symbolic), BOTH),
    ("a second copy of the head", own_head, BOTH),
]


def batching(**values: object) -> Apply:
    """Set keys of the Engine's batches."""
    return configured(of_part("engine", "dynamic_batching", **values))


def session(role: str, **values: object) -> Apply:
    """Set options of a graph's session."""
    return configured(
        lambda c, d: (d if role == "drafter" else c["model"]["decoder"])["session_options"].update(values)
    )


def key_heads(config: dict[str, Any], _: dict[str, Any]) -> None:
    """Another number of key heads in what is taken back."""
    config["model"]["decoder"]["state_groups"][2]["state_update"]["key_head_count"] = 1


CONFIG: list[tuple[str, Apply, tuple[str, ...]]] = [
    ("config: a shorter context", configured(of_part("model", context_length=512)), BOTH),
    ("config: max_length", configured(of_part("search", max_length=64)), BOTH),
    ("config: an extra stop id", configured(lambda c, d: c["model"]["eos_token_id"].append(300)), BOTH),
    ("config: bos and pad ids", configured(of_part("model", bos_token_id=7, pad_token_id=8)), BOTH),
    ("config: no provider for the decoder", configured(of_decoder(session_options={"provider_options": []})), BOTH),
    ("config: no provider for the drafter", configured(of_drafter(session_options={"provider_options": []})), BOTH),
    ("config: fewer drafts a step", configured(of_part("speculative", max_draft_tokens=2)), BOTH),
    ("config: one request at a time", batching(max_batch_size=1), BOTH),
    ("config: a small share of the GPU", batching(gpu_utilization_factor=0.01), BOTH),
    ("config: prompts in chunks of one", configured(of_part("search", chunk_size=1)), BOTH),
    ("config: few tokens a step", batching(max_scheduled_tokens=16), BOTH),
    ("config: prefix caching", batching(prefix_caching=True), D2),
    ("config: a least length", configured(of_part("search", min_length=900)), BOTH),
    ("config: key heads of an update", configured(key_heads), BOTH),
    ("config: a library of operators", session("decoder", custom_ops_library="libops.so"), BOTH),
    ("config: a profile is written", session("drafter", enable_profiling="profile"), BOTH),
    ("config: one thread", session("decoder", intra_op_num_threads=1), BOTH),
]

HOT = json_file("generation_config.json", lambda data: data.update(temperature=9.0))
GAP = json_file("draftsmith.json", lambda data: data["files"].pop("model.onnx"))
TEMPLATE = b'{"chat_template": "{{ messages[0].content }}"}'

FILES: list[tuple[str, Apply, tuple[str, ...]]] = [
    ("tokenizer: ids rolled by one", json_file("tokenizer.json", rolled_ids), BOTH),
    ("tokenizer: two rare tokens swapped", json_file("tokenizer.json", two_ids), BOTH),
    ("tokenizer: another end token", json_file("tokenizer_config.json", lambda t: t.update(eos_token="the")), BOTH),
    ("tokenizer missing", remove("tokenizer.json"), BOTH),
    ("tokenizer's configuration missing", remove("tokenizer_config.json"), BOTH),
    ("another chat template", append("chat_template.jinja", b"{{ messages[0].content }}"), BOTH),
    ("generation_config.json: sampling", HOT, BOTH),
    ("draftsmith.json missing", remove("draftsmith.json"), BOTH),
    ("draftsmith.json: other options", manifest_option(max_draft_tokens=1), BOTH),
    ("draftsmith.json: a list of files with a gap", GAP, BOTH),
    ("bytes behind the weights", append("model.onnx.data", b"\1" * 64), BOTH),
    ("a second chat template", append("chat_template.json", TEMPLATE), BOTH),
    ("a library in the folder", append("libops.so", b"\x7fELF"), BOTH),
    ("the drafter taken out", without_drafter, BOTH),
    ("the graph in another folder", outside_filename, D2),
    ("a file that is a link to one outside", linked_file, D2),
]

UNSEEN = [Fault(name, apply, kinds) for name, apply, kinds in (*NUMBERS, *GRAPHS, *CONFIG, *FILES)]
