"""An export's folder, opened: its configuration and its graphs; no weights are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from builder.output import MANIFEST
from builder.plan import TARGET
from drafters.checkpoint.kinds import RuntimeKind
from draftsmith.validation.widen import is_plain
from genai_config.sections import GRAPH_SECTIONS
from onnxkit.errors import ExportError, listed
from onnxkit.json_object import JsonObject, load_json
from onnxkit.weights.misfits import EXPORT, no_folder
from onnxkit.weights.save import PRODUCER

CONFIG = "genai_config.json"
DRAFTERS = tuple(RuntimeKind)


@dataclass(frozen=True)
class Graph:
    """One graph of an export.

    Attributes:
        role: ``decoder``, ``dflash2`` or ``dspark``.
        path: Its file.
        section: Its section of the configuration.
        model: The graph; initializers know where their bytes are.
    """

    role: str
    path: Path
    section: dict[str, Any]
    model: ir.Model

    @property
    def initializers(self) -> Mapping[str, ir.TensorProtocol]:
        """The tensors of the graph by name."""
        values = self.model.graph.initializers
        return {name: value.const_value for name, value in values.items() if value.const_value is not None}

    def nodes(self, *kinds: str) -> list[ir.Node]:
        """The nodes of some operators, in order."""
        return [node for node in self.model.graph if node.op_type in kinds]


@dataclass(frozen=True)
class ExportFolder:
    """An export.

    Attributes:
        path: The folder.
        config: ``genai_config.json``.
        graphs: The package of graphs: the decoder, then a drafter if there is one.
        manifest: ``draftsmith.json``, if there is one from this tool.
    """

    path: Path
    config: dict[str, Any]
    graphs: tuple[Graph, ...]
    manifest: JsonObject | None = None

    @property
    def decoder(self) -> Graph:
        """The target's graph."""
        return self.graphs[0]

    @property
    def drafter(self) -> Graph | None:
        """The drafter's graph, if there is one."""
        return next((graph for graph in self.graphs if graph.role in DRAFTERS), None)

    @property
    def packed(self) -> bool:
        """Whether the layout is the Engine's."""
        return "block_table" in {value.name for value in self.decoder.model.graph.inputs}

    @property
    def taps(self) -> bool:
        """Whether the target outputs hidden states for a drafter."""
        return "aux_hidden_states" in {value.name for value in self.decoder.model.graph.outputs}

    @property
    def asked_taps(self) -> tuple[int, ...]:
        """The taps that were requested for the export, as recorded in its own list of files; empty if not recorded."""
        return tuple(self.options.get("aux_hidden_state_layers") or ())

    @property
    def options(self) -> dict[str, Any]:
        """The options that the export was made with, as recorded in its own list of files; empty if not recorded."""
        options = self.manifest.data.get("options") if self.manifest else None
        return options if isinstance(options, dict) else {}

    @property
    def context(self) -> int:
        """The most positions that a request may have."""
        length = self.config["model"].get("context_length")
        return length if isinstance(length, int) and length > 0 else 0


def open_export(path: Path) -> ExportFolder:
    """Open an export.

    Only plain files of the folder are opened: names and links that lead outside are refused.

    Raises:
        ExportError: The path is not a folder, or the configuration or a graph it names is missing, damaged or outside.
    """
    if not path.is_dir():
        raise no_folder(path, "FOLDER", EXPORT)
    if not (path / CONFIG).is_file():
        checkpoint = (path / "config.json").is_file()
        raise ExportError(
            f"The folder holds no export{', but a checkpoint' if checkpoint else ''}.",
            where=path,
            found=listed(sorted(p.name for p in path.iterdir())) or "an empty folder",
            accepted=EXPORT,
            fix=f"Export it first: python -m builder -i {path} ..."
            if checkpoint
            else "Check the path, or export first.",
        )
    for entry in sorted(path.iterdir()):
        _check_link(path, entry)
    config = load_json(path / CONFIG, once=True)
    model = JsonObject(config, str(path / CONFIG)).section("model")
    graphs = tuple(_graph(path, model, role) for role in GRAPH_SECTIONS if role in model or role == TARGET)
    return ExportFolder(path, config, graphs, read_manifest(path))


def _check_link(folder: Path, entry: Path) -> None:
    """Links may point within the folder, and into the blobs of the Hub's cache, whose snapshots are such links."""
    if not entry.is_symlink():
        return
    real, home = Path(os.path.realpath(entry)), Path(os.path.realpath(folder))
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else None
    if home not in real.parents and real.parent != blobs:
        raise ExportError(
            "A link leads out of the export.",
            where=entry,
            found=f"a link to {real}",
            accepted="files, and links within the folder (or into the blobs of the Hub's cache)",
            fix="Put the file itself in its place, if you know what it is.",
        )


def read_manifest(path: Path) -> JsonObject | None:
    """``draftsmith.json`` of an export's folder, if it is this tool's."""
    if not (path / MANIFEST).is_file():
        return None
    manifest = JsonObject(load_json(path / MANIFEST), MANIFEST)
    return manifest if manifest.data.get("tool") == PRODUCER else None


def _graph(path: Path, model: JsonObject, role: str) -> Graph:
    section = model.section(role)
    name = section.string("filename")
    if not is_plain(name):
        raise ExportError(
            "The configuration names a file outside the folder.",
            where=section.place("filename"),
            found=repr(name),
            accepted="the plain name of a file of the folder",
            fix="Put the graph and its data into the folder, and name it without a path.",
        )
    file = path / name
    if not file.is_file():
        raise ExportError(
            "A file that the configuration names is missing.",
            where=section.place("filename"),
            found=f"{name}, which is not there",
            accepted="the name of a file of the folder",
            fix="Copy the whole folder, or export again.",
        )
    try:
        graph = ir.load(file)
    except Exception as error:  # the protobuf library raises errors of its own
        raise ExportError(
            "A graph is damaged.",
            where=file,
            found=f"{file.stat().st_size} bytes; {error}",
            accepted="an ONNX model",
            fix="Copy the file again, or export again.",
        ) from error
    return Graph(role, file, section.data, graph)
