"""Checkpoints that were made to do harm: too large in every way that there is. Shared by tests and a benchmark."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.checkpoints import TINY

REPOSITORY = Path(__file__).parent.parent
PAIR = Path(__file__).parent / "assets" / "pair"
TARGET, DFLASH2, DSPARK = TINY, PAIR / "dflash2", PAIR / "dspark"
MEMORY, SECONDS = 1_000_000_000, 5  # what a refusal may take

Json = dict[str, Any]
Harm = Callable[[Path], object]

# Runs the commands that it reads, each in a child of its own, with room for half as much again as may be taken. A child
# starts with what its parent holds, so that the ONNX libraries are loaded once and counted each time.
_RUNNER = """
import json, os, resource, sys
import draftsmith.inspect, builder.export
from draftsmith.cli import main
held = int(open("/proc/self/statm").read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
limit = held + int(sys.argv[1]) * 3 // 2
for line in sys.stdin:
    arguments, log = json.loads(line)
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # not RLIMIT_AS: files are mapped
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os._exit(main(arguments))
    _, status, usage = os.wait4(child, 0)
    print(json.dumps([status, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime]), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit status, its peak of resident bytes, seconds of the processor, its text."""

    status: int
    peak: int
    seconds: float
    text: str


def run(commands: list[list[str]], log: Path) -> Iterator[Outcome]:
    """Run commands of ``draftsmith`` one after another."""
    command = [sys.executable, "-c", _RUNNER, str(MEMORY)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        for arguments in commands:
            print(json.dumps([arguments, str(log)]), file=process.stdin, flush=True)
            status, peak, seconds = json.loads(process.stdout.readline())
            yield Outcome(os.waitstatus_to_exitcode(status), peak, seconds, log.read_text(errors="replace"))


def commands(checkpoint: Path, output: Path, drafter: bool = False) -> list[list[str]]:
    """What reads a checkpoint: an export, of it or with it as the drafter, and ``inspect``."""
    base = ["export", "-o", str(output), "-p", "bf16", "-e", "cuda", "-i"]
    if drafter:
        packed = [*base, str(PAIR / "target"), "--extra_options", f"drafter_path={checkpoint}"]
        return [packed, ["inspect", str(checkpoint)]]
    packed = [*base, str(checkpoint), "--extra_options", "use_paged_attention=true"]
    return [packed, ["inspect", str(checkpoint)]]


def made(source: Path, folder: Path, harm: Harm) -> Path:
    """A copy of a checkpoint to which something was done."""
    shutil.copytree(source, folder)
    harm(folder)
    return folder


def claims(key: str, value: str) -> Harm:
    """Say something else in ``config.json``, wherever the key stands; ``value`` is JSON."""

    def harm(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        sections = [config, *(part for part in config.values() if isinstance(part, dict))]
        holders = [section for section in sections if key in section] or sections[:1]
        for section in holders:
            section[key] = "\0"
        if key == "num_hidden_layers":  # a list of layers would contradict it; without one nothing else tells
            for section in sections:
                section.pop("layer_types", None)
        path.write_text(json.dumps(config).replace('"\\u0000"', value))

    return harm


def counts(source: Path) -> list[str]:
    """The keys of a configuration whose values are whole numbers, those of sections included."""
    config = json.loads((source / "config.json").read_text())
    config.pop("vision_config", None)
    sections = [config, *(part for part in config.values() if isinstance(part, dict))]
    return sorted({k for section in sections for k, v in section.items() if type(v) is int})


def writes(name: str, text: Callable[[], str | bytes]) -> Harm:
    """Replace a file."""

    def harm(folder: Path) -> None:
        data = text()
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    return harm


def config_with(change: Callable[[Json], object]) -> Harm:
    """Change ``config.json``."""

    def harm(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return harm


def header(entries: Json | bytes, size: int | None = None, length: int = 0) -> Harm:
    """Replace the weights by a header, and a hole of ``length`` bytes."""

    def harm(folder: Path) -> None:
        text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text) if size is None else size))
            file.write(text)
            file.truncate(8 + len(text) + length)

    return harm


def index(weight_map: Json) -> Harm:
    """Replace the weights by an index."""

    def harm(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return harm


def empty_tensors(count: int, name: str = "model.layers.%d.mlp.gate_proj.weight") -> Json:
    """Headers of tensors without an element."""
    return {name % i: {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]} for i in range(count)}


def huge_norms(folder: Path) -> None:
    """A model that is as wide as its holes: all agrees, and nothing is stored."""
    width, entries, at = 1 << 30, {}, 0
    for layer in range(8):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            name = f"model.language_model.layers.{layer}.{norm}.weight"
            entries[name] = {"dtype": "BF16", "shape": [width], "data_offsets": [at, at + 2 * width]}
            at += 2 * width
    for name in ("model.language_model.embed_tokens.weight", "lm_head.weight"):
        entries[name] = {"dtype": "BF16", "shape": [1, width], "data_offsets": [at, at + 2 * width]}
        at += 2 * width
    header(entries, length=at)(folder)
    claims("hidden_size", str(width))(folder)


def _nested(depth: int) -> str:
    return '{"architectures":' + "[" * depth + "]" * depth + "}"


LONG = "9" * 5000
# What is done to a target's folder, and a part of the message that must come of it ("" for any).
FLOODS: dict[str, tuple[Harm, str]] = {
    "config: 60 MB of nothing": (writes("config.json", lambda: " " * 60_000_000 + "{}"), "50 MiB"),
    "config: 16 million lists": (writes("config.json", lambda: '{"a":[' + "[]," * 16_000_000 + "0]}"), "3000000 parts"),
    "config: towers of lists": (
        writes("config.json", lambda: '{"a":[' + ("[" * 60 + "]" * 60 + ",") * 400_000 + "0]}"),
        "3000000 parts",
    ),
    "config: nested 100 000 deep": (writes("config.json", lambda: _nested(100_000)), "not valid JSON"),
    "config: nested 200 deep": (writes("config.json", lambda: _nested(200)), "nested"),
    "config: 100 000 keys": (
        config_with(lambda c: c.update({f"key_{i:0>90}": i for i in range(100_000)}, text_config={})),
        "not known",
    ),
    "config: 100 000 keys of the text model": (
        config_with(lambda c: c["text_config"].update({f"key_{i:0>90}": i for i in range(100_000)})),
        "not known",
    ),
    "config: a key of 10 MB": (config_with(lambda c: c["text_config"].update({"k" * 10_000_000: 1})), "not known"),
    "config: a key 100 000 times": (
        writes("config.json", lambda: "{" + "".join(f'"{i}":0,' for i in range(200_000)) + '"0":1}'),
        "stands twice",
    ),
    "config: a number of 5000 digits": (claims("hidden_size", LONG), "5000 digits"),
    "config: a context of 10^15": (
        config_with(
            lambda c: c["text_config"]["rope_parameters"].update(
                rope_type="yarn", factor=1e12, original_max_position_embeddings=4096
            )
        ),
        "stretched context",
    ),
    "config: half of a pair": (claims("model_type", '"\\ud800"'), "surrogate"),
    "config: a million kinds of layers": (
        config_with(lambda c: c["text_config"].update(layer_types=["linear_attention"] * 1_000_000)),
        "layer_types",
    ),
    "config: a million end tokens": (
        config_with(lambda c: c["text_config"].update(eos_token_id=list(range(1_000_000)), hidden_act="no")),
        "hidden_act",
    ),
    "tokenizer: 16 million lists": (writes("tokenizer.json", lambda: '{"a":[' + "[]," * 16_000_000 + "0]}"), "parts"),
    "tokenizer: a number of 5000 digits": (
        writes("tokenizer_config.json", lambda: f'{{"model_max_length":{LONG}}}'),
        "5000 digits",
    ),
    "index: 300 000 tensors": (index({f"t{i}": "a.safetensors" for i in range(300_000)}), "200000 tensors"),
    "index: 100 000 files": (index({f"t{i}": f"{i}.safetensors" for i in range(100_000)}), "2000 files"),
    "index: a name of 300 characters": (index({"t": "a" * 300 + ".safetensors"}), "File name too long"),
    "index: a name with a null": (index({"t": "a\0b.safetensors"}), "embedding"),
    "index: a number": (index({"t": 5}), "outside"),
    "header: 2^63 bytes": (header({}, size=2**63), "header"),
    "header: a gigabyte of hole": (header({}, size=2**30, length=2**30), "header of 1073741824 bytes"),
    "header: 250 000 tensors": (
        lambda folder: header(empty_tensors(250_000, "%d"))(folder),
        "",  # by their number or by the bytes of the header
    ),
    "header: 150 000 tensors": (lambda folder: header(empty_tensors(150_000))(folder), "embedding"),
    "header: a name of 10 MB": (
        lambda folder: header(empty_tensors(1, "model." * 1_600_000 + "%d"))(folder),
        "characters",
    ),
    "header: a million dimensions": (
        lambda folder: header({"a": {"dtype": "U8", "shape": [1] * 1_000_000, "data_offsets": [0, 1]}}, length=1)(
            folder
        ),
        "dimensions",
    ),
    "header: 20 MB of metadata": (
        lambda folder: header({"__metadata__": {f"{i}": "x" for i in range(1_000_000)}})(folder),
        "embedding",
    ),
    "header: a number of 5000 digits": (
        header(b'{"a":{"dtype":"U8","shape":[' + LONG.encode() + b'],"data_offsets":[0,0]}}'),
        "safetensors",
    ),
    "weights: as wide as their holes": (huge_norms, "hidden_size"),
}
NUMBERS = ("1000000000", "1e308")
