"""Configurations of public releases: what is exported, and what is refused, by headers alone.

Their weights are holes in files, so that every check before the first byte that is written runs as on the releases.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest

from builder.export import export
from builder.options import BuildOptions
from builder.output import OutputFolder
from draftsmith.inspect import inspect
from onnxkit.errors import ExportError
from tests.nightly import sampled

ASSETS = Path(__file__).parent / "assets" / "real-configs"
NAMES = sorted(path.stem for path in ASSETS.glob("*.json"))
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "BOOL": 1}

# A release that another shape stands for.
TARGETS = {"Qwen3.8-27B": "Qwen3.6_27B", "Qwen3.6-27B": "Qwen3.6_27B"}


class Reached(Exception):
    """All checks are passed, and the first byte would be written."""


def case(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ASSETS / f"{name}.json").read_text(encoding="utf-8"))
    return data


def tensors(entries: list[list[Any]]) -> Iterator[tuple[str, str, list[int]]]:
    for name, dtype, shape, *layers in entries:
        for part in layers[0].split(",") if layers else [""]:
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1) if part else [""]:
                yield name.replace("*", str(number)), dtype, shape


def write(data: dict[str, Any], folder: Path) -> Path:
    """A checkpoint whose weights are a hole, but for the map of a vocabulary."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(data["config"]))
    header: dict[str, Any] = {}
    offset = 0
    for name, dtype, shape in tensors(data["tensors"]):
        end = offset + prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
        if ones := data.get("t2d_ones"):
            file.seek(8 + len(text) + header["t2d"]["data_offsets"][0])
            file.write(b"\1" * ones)
    return folder


def run(name: str, folder: Path) -> None:
    """Export it up to the first byte, a drafter beside its target; without one, inspect it."""
    data = case(name)
    own = write(data, folder / "own")
    block = data.get("drafter_block_size")
    if data["role"] == "drafter" and "target" not in data:
        list(inspect(own, block))
        return
    more: dict[str, Any] = {"input": own}
    if data["role"] == "drafter":
        target = data["target"]
        more = {"input": write(case(TARGETS.get(target, target.replace("-", "_", 1))), folder / "target")}
        more |= {"drafter_path": own, "drafter_block_size": block}
    with pytest.raises(Reached):
        export(BuildOptions(output=folder / "out", precision="bf16", provider="cuda", **more))


# Drafters with tables of their own, as large as their target's: the two are compared, gigabytes of holes. One of them,
# satgeze's, is in every run.
SLOW = {
    "speculators_convert_of_z_lab_Qwen3.6_27B_DFlash_embed_and_head_stored",
    "verl_SpeCo_DFlash_from_scratch_num_target_layers_is_the_target_s",
    "verl_SpeCo_DSpark_from_scratch",
}


@pytest.mark.parametrize("name", sampled(NAMES, keep=lambda name: name not in SLOW))
def test_release(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(self: OutputFolder, size: int) -> None:
        raise Reached

    monkeypatch.setattr(OutputFolder, "check_room", reached)
    if case(name)["expected"] == "refused":
        with pytest.raises(ExportError):
            run(name, tmp_path)
    else:
        run(name, tmp_path)
    assert not (tmp_path / "out").exists()


def test_there_are_as_many_as_were_collected() -> None:
    assert len(NAMES) == 62 and set(NAMES) >= SLOW
    assert {case(name)["expected"] for name in NAMES} == {"exported", "refused"}
