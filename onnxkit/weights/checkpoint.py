"""A checkpoint folder: its configuration and the headers of its weight files, opened without reading a weight."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from onnxkit.errors import ExportError, listed
from onnxkit.json_object import JsonObject, load_json
from onnxkit.weights.safetensors_file import StoredTensor, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_RAW = (".pt", ".pth", ".bin", ".ckpt", ".distcp")


class Checkpoint:
    """A folder with ``config.json`` and weights in one safetensors file or in shards with an index.

    Attributes:
        folder: The folder.
        config: ``config.json``.
        tensors: Every stored tensor by name.
        astray: Tensors of which the index is wrong, each with what is wrong: it names them and no shard holds them, or
            a shard holds them and it names none or another. They are an error where a graph reads them.
        option: The option that named the folder, for messages.
        claimed: Names that some part of the export has taken or has left out on purpose.

    Raises:
        ExportError: The folder, its configuration, its index or one of its files is missing or wrong.
    """

    def __init__(self, folder: Path, option: str = "-i") -> None:
        self.folder, self.option = folder, option
        if not folder.is_dir():
            raise ExportError(
                "The input is not a folder." if folder.exists() else "The folder does not exist.",
                where=folder,
                found="something else" if folder.exists() else "nothing",
                accepted="a checkpoint folder with config.json and safetensors files",
                fix=f"Check the path that {option} names.",
            )
        if not (folder / "config.json").is_file():
            raise ExportError(
                "The folder holds no config.json.",
                where=folder,
                found=listed(sorted(p.name for p in folder.iterdir())) or "an empty folder",
                accepted="a checkpoint folder as the transformers library saves it",
                fix=f"Point {option} at the folder that holds config.json.",
            )
        self.config = JsonObject(load_json(folder / "config.json", once=True), str(folder / "config.json"))
        self.tensors, self.astray = _read_tensors(folder)
        self.claimed: set[str] = set()

    def read_json(self, name: str, *, once: bool = False) -> JsonObject | None:
        """A further JSON file of the folder, or None where there is none; ``once`` refuses a key that stands twice."""
        path = self.folder / name
        return JsonObject(load_json(path, once=once), name) if path.is_file() else None

    def claim(self, names: Iterable[str]) -> None:
        """Mark tensors as taken care of."""
        self.claimed.update(names)

    def index_notes(self) -> list[str]:
        """A note where the index is wrong of tensors that nothing has claimed."""
        names = [name for name in self.astray if name not in self.claimed]
        if not names:
            return []
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return [f"{INDEX_FILE}: {names[0]}{more}: {self.astray[names[0]]}; no graph reads them"]

    def unclaimed(self) -> list[str]:
        """The tensors that nothing has claimed."""
        return [name for name in self.tensors if name not in self.claimed]


def _read_tensors(folder: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    single, index = (folder / SINGLE_FILE).is_file(), (folder / INDEX_FILE).is_file()
    if single and index:
        raise ExportError(
            "The checkpoint holds its weights twice, in one file and in shards.",
            where=folder,
            found=f"{SINGLE_FILE} and {INDEX_FILE}",
            accepted="one of the two",
            fix="Move away the one that is out of date.",
        )
    if single:
        return read_header(folder / SINGLE_FILE), {}
    if index:
        return _read_shards(folder)
    files = sorted(p.name for p in folder.iterdir() if p.is_file())
    raw = [name for name in files if name.endswith(_RAW)]
    raise ExportError(
        "The checkpoint holds no weights that can be read.",
        where=folder,
        found=listed(files) + (f"\n({raw[0]} looks like the raw state of a training run)" if raw else ""),
        accepted=f"{SINGLE_FILE}, or shards with {INDEX_FILE}",
        fix="Export the run to a Hugging Face checkpoint first."
        if raw
        else "Save the model as safetensors (save_pretrained does so).",
    )


def _read_shards(folder: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors that index and shards agree on, and what is wrong of the others."""
    weight_map = JsonObject(load_json(folder / INDEX_FILE, once=True), INDEX_FILE).section("weight_map").data
    shards = {name: _shard_path(folder, name, shard) for name, shard in weight_map.items()}
    headers = {path: read_header(path) for path in sorted(set(shards.values())) if path.is_file()}
    tensors, astray = {}, {}
    for name, path in shards.items():
        if path not in headers:
            astray[name] = f"{INDEX_FILE} names it in {path.name}, and there is no such file"
        elif name in headers[path]:
            tensors[name] = headers[path][name]
        else:
            astray[name] = f"{INDEX_FILE} names it in {path.name}, which does not hold it"
    for path, held in headers.items():
        for name in held:
            if name not in shards:
                astray[name] = f"it stands in {path.name}, and {INDEX_FILE} does not name it"
            elif shards[name] != path:
                astray[name] = f"it stands in {path.name}, too, and {INDEX_FILE} names it in {shards[name].name}"
                tensors.pop(name, None)
    return tensors, astray


def _shard_path(folder: Path, tensor: str, shard: Any) -> Path:
    """The path of a shard. Links are followed (the Hub's cache is made of them); names that lead outside are not."""
    name = PurePosixPath(shard) if isinstance(shard, str) else PurePosixPath("/")
    if name.is_absolute() or ".." in name.parts or not name.name or "\\" in str(shard):
        raise ExportError(
            "The index points outside the checkpoint's folder.",
            where=f"{folder / INDEX_FILE}: weight_map[{tensor!r}]",
            found=repr(shard),
            accepted="the name of a file in the folder",
            fix="Get the index from a source that you trust.",
        )
    return folder / name
