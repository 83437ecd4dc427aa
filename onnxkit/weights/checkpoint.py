"""A checkpoint folder: its configuration and the headers of its weight files, opened without reading any weights."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from onnxkit.errors import ExportError, system_errors
from onnxkit.json_object import JsonObject, load_json
from onnxkit.weights.limits import limits
from onnxkit.weights.misfits import no_config, no_folder, no_weights
from onnxkit.weights.safetensors_file import MOST_TENSORS, StoredTensor, read_header
from onnxkit.weights.sources import Sources

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MOST_SHARDS = 2000
_log = logging.getLogger(__name__)


class Checkpoint:
    """A folder with ``config.json`` and weights in one safetensors file or in shards with an index.

    Attributes:
        folder: The folder.
        config: ``config.json``.
        tensors: Every stored tensor by name.
        astray: Tensors that the index lists wrongly, each with what is wrong: it names them but no shard holds them, or
            a shard holds them but it names no shard or another one. They are an error if a graph reads them.
        option: The option that named the folder, for messages.
        headers_only: Whether the files hold only headers, so that nothing can be said about the tensors' values.

    Raises:
        ExportError: The folder, its configuration, its index or one of its files is missing or wrong.
    """

    def __init__(self, folder: Path, option: str = "-i", *, headers_only: bool = False) -> None:
        self.folder, self.option = folder, option
        with system_errors(folder, "a folder and files that you may read"):
            self.sources = self._open()
            config = load_json(self.sources.must("config.json"), once=True)
            self.tensors, self.astray = _read_tensors(self.sources)
        if headers_only:
            self.tensors = {name: replace(tensor, here=False) for name, tensor in self.tensors.items()}
        self.config = JsonObject(config, str(folder / "config.json"), limits(self.tensors.values()))
        files = {tensor.path for tensor in self.tensors.values()}
        _log.info("opened %s: headers of %d tensors in %d files", folder, len(self.tensors), len(files))

    def _open(self) -> Sources:
        folder, option = self.folder, self.option
        if not folder.is_dir():
            raise no_folder(folder, option)
        sources = Sources(folder)
        if sources.find("config.json") is None:
            raise no_config(folder, option)
        return sources

    def file(self, name: str) -> Path | None:
        """The path of a file in the folder that the export will read or copy, or None if it is absent.

        Every file is found here: links that lead out of the checkpoint are refused, and changes are noticed at the end.

        Raises:
            ExportError: It is a link that leads out of the checkpoint.
        """
        with system_errors(self.folder / name, "a file that you may read"):
            return self.sources.find(name)

    def check_unchanged(self) -> None:
        """Check, once everything is read, that the files are still those that were found.

        Raises:
            ExportError: One was replaced, changed in place or removed in the meantime.
        """
        self.sources.check_unchanged()

    def read_json(self, name: str, *, once: bool = False) -> JsonObject | None:
        """Another JSON file of the folder, or None if it is absent; ``once`` refuses a key that occurs twice."""
        path = self.file(name)
        return JsonObject(load_json(path, once=once), name) if path else None


def _read_tensors(sources: Sources) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    folder, single, index = sources.folder, sources.find(SINGLE_FILE), sources.find(INDEX_FILE)
    if single and index:
        raise ExportError(
            "The checkpoint holds its weights twice, in one file and in shards.",
            where=folder,
            found=f"{SINGLE_FILE} and {INDEX_FILE}",
            accepted="one of the two",
            fix="Move away the one that is out of date.",
        )
    if single:
        return read_header(single), {}
    if index:
        return _read_shards(sources, index)
    raise no_weights(folder, f"{SINGLE_FILE}, or shards with {INDEX_FILE}")


def _read_shards(sources: Sources, index: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors that index and shards agree on, and what is wrong with the others."""
    folder = sources.folder
    weight_map = JsonObject(load_json(index, once=True), INDEX_FILE).section("weight_map").data
    named = {name for name in weight_map.values() if isinstance(name, str)}
    if len(weight_map) > MOST_TENSORS or len(named) > MOST_SHARDS:
        raise _too_many(index, f"{len(weight_map)} tensors in {len(named)} files")
    shards = {name: _shard_path(folder, name, shard) for name, shard in weight_map.items()}
    headers: dict[Path, dict[str, StoredTensor]] = {}
    for path in sorted(set(shards.values())):
        if sources.find(path.relative_to(folder).as_posix()) is None:
            continue
        headers[path] = read_header(path)
        if (count := sum(map(len, headers.values()))) > MOST_TENSORS:
            raise _too_many(index, f"{count} tensors and more in {len(named)} files")
    return _agreed(shards, headers)


def _agreed(
    shards: dict[str, Path], headers: dict[Path, dict[str, StoredTensor]]
) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors that are where the index says, and what is wrong with the others."""
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


def _too_many(index: Path, found: str) -> ExportError:
    return ExportError(
        "The index exceeds the limits of any real checkpoint.",
        where=index,
        found=found,
        accepted=f"up to {MOST_TENSORS} tensors in up to {MOST_SHARDS} files",
        fix="Get the index from a source that you trust.",
    )


def _shard_path(folder: Path, tensor: str, shard: Any) -> Path:
    """The path of a shard. Links are followed (the Hub's cache is made of them); names that lead outside are not."""
    name = PurePosixPath(shard) if isinstance(shard, str) else PurePosixPath("/")
    if name.is_absolute() or ".." in name.parts or not name.name or "\\" in str(shard):
        raise ExportError(
            "The index points outside the checkpoint's folder.",
            where=f"{folder / INDEX_FILE}: weight_map[{tensor[:200]!r}]",
            found=repr(shard),
            accepted="the name of a file in the folder",
            fix="Get the index from a source that you trust.",
        )
    return folder / name
