"""The build: checks first, all of them; then a staging folder; then one step that puts it in place."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from builder.hub import fetch
from builder.options import OPTIONS, BuildOptions
from builder.output import LAST, MANIFEST, OutputFolder, mendable
from builder.qwen35.borders import TargetOptions
from builder.qwen35.config import TargetConfig, read_target_config
from builder.qwen35.dense import build_dense
from builder.qwen35.names import StoredNames, find_names
from builder.qwen35.packed import build_packed
from builder.runtime_config import check_names, stop_ids, target_genai_config
from builder.tokenizer import TokenizerFiles, generation_config, plan_tokenizer, stop_notes
from genai_config.sections import GenaiConfig
from onnxkit import __version__
from onnxkit.errors import ExportError
from onnxkit.layers.basic import Style
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.manifest import plan_tensors
from onnxkit.weights.safetensors_file import DTYPES
from onnxkit.weights.save import external_bytes, progress_bar, save

MODEL_FILE = "model.onnx"

DTYPE_OF = {"fp32": ir.DataType.FLOAT, "fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}

# Tokens in a page, and the tiles of the paged attention kernel by the widest head that they are for.
DEFAULT_PAGE = 256
_TILES, _SMALLEST_TILE = ((64, 256), (128, 128)), 64

# Room for what is not weights: the graph, the configuration. A 64-layer graph is under 2 MB.
_GRAPH_BYTES = 4 << 20


@dataclass(frozen=True)
class Report:
    """What an export did: the folder, its files with their sizes in bytes, the seconds it took, and notes."""

    folder: Path
    files: dict[str, int]
    seconds: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        width = max(map(len, self.files))
        lines = [f"Exported to {self.folder} in {self.seconds:.1f} s:"]
        lines += [f"  {name:<{width}}  {readable(size):>10}" for name, size in self.files.items()]
        lines += [f"  {'in all':<{width}}  {readable(sum(self.files.values())):>10}"]
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Plan:
    """A build that has passed every check: nothing is written yet, and no weight read."""

    model: ir.Model
    config: GenaiConfig
    tokenizer: TokenizerFiles
    notes: tuple[str, ...]


def export(options: BuildOptions) -> Report:
    """Export a checkpoint.

    Raises:
        ExportError: Something in the request or the checkpoint is not right; the output is as it was.
    """
    start = time.monotonic()
    folder = _checkpoint_folder(options)
    output = OutputFolder(options.output, [folder])
    plan = _plan(options, folder)
    weights = external_bytes(plan.model)
    output.check_room(weights + plan.tokenizer.size() + _GRAPH_BYTES)
    with output as staging, mendable(options.output):
        with progress_bar(weights, "Writing weights") as progress:
            save(plan.model, staging / MODEL_FILE, progress)
        (staging / LAST).write_text(plan.config.to_json(), encoding="utf-8")
        plan.tokenizer.write(staging)
        files = _write_manifest(staging, options, plan)
        output.commit()
    return Report(options.output, files, time.monotonic() - start, plan.notes)


def _checkpoint_folder(options: BuildOptions) -> Path:
    if options.model is None:
        assert options.input is not None  # BuildOptions sees to it
        return options.input
    OutputFolder(options.output, [])  # an output that cannot be is refused before gigabytes are downloaded
    return fetch(options.model, options.cache_dir)


def _plan(options: BuildOptions, folder: Path) -> _Plan:
    checkpoint = Checkpoint(folder)
    config = read_target_config(checkpoint.config)
    names = find_names(checkpoint, config)
    target = _target_options(options, config, names)
    model, module = (build_packed if options.use_paged_attention else build_dense)(config, target)
    plan_tensors(module, checkpoint, names)
    generation = generation_config(checkpoint)
    genai = target_genai_config(config, options, target, generation, MODEL_FILE)
    check_names(genai, model.graph)
    tokenizer = plan_tokenizer(checkpoint)
    notes = [
        *names.notes,
        *_dtype_note(checkpoint, names),
        *tokenizer.notes,
        *stop_notes(checkpoint, stop_ids(config, generation)),
    ]
    return _Plan(model, genai, tokenizer, tuple(notes))


def _target_options(options: BuildOptions, config: TargetConfig, names: StoredNames) -> TargetOptions:
    return TargetOptions(
        context_length=_context_length(options, config),
        prune_lm_head=options.prune_lm_head,
        include_hidden_states=options.include_hidden_states,
        tied=names.tied,
        style=Style(DTYPE_OF[options.precision]),
        taps=_taps(options, config),
        page_size=_page_size(options, config),
        capacity=options.state_update_capacity or 0,
    )


def _taps(options: BuildOptions, config: TargetConfig) -> tuple[int, ...]:
    """The tapped layers. A tap is the stream entering a layer; the number of layers stands for the final norm."""
    taps, count = options.aux_hidden_state_layers, config.num_hidden_layers
    if taps and max(taps) > count:
        raise ExportError(
            "A tap is beyond the last layer.",
            where=f"--extra_options aux_hidden_state_layers={','.join(map(str, taps))}",
            found=max(taps),
            accepted=f"1 to {count}: the stream entering that layer, {count} for what leaves the last one",
            fix="Name layers that the checkpoint has.",
        )
    return taps


def _page_size(options: BuildOptions, config: TargetConfig) -> int:
    """Tokens in a page. The attention kernel reads whole tiles, whose size goes by the head's width."""
    tile = next((tile for width, tile in _TILES if config.head_dim <= width), _SMALLEST_TILE)
    size = options.paged_block_size or DEFAULT_PAGE
    if size % tile:
        raise ExportError(
            "The page is smaller than the attention kernel's tile.",
            where=f"--extra_options paged_block_size={size}",
            found=size,
            accepted=f"a power of two from {tile} (heads here are {config.head_dim} wide)",
            fix="Ask for larger pages, or leave the option out.",
        )
    return size


def _context_length(options: BuildOptions, config: TargetConfig) -> int:
    limit = config.longest_context
    if options.context_length is not None and options.context_length > limit:
        raise ExportError(
            "The context is longer than the checkpoint's.",
            where=f"--extra_options context_length={options.context_length}",
            found=options.context_length,
            accepted=f"1 to {limit} (max_position_embeddings in config.json, or what YaRN stretches it to)",
            fix="Ask for less, or leave the option out.",
        )
    return options.context_length or limit


def _dtype_note(checkpoint: Checkpoint, names: StoredNames) -> Sequence[str]:
    """A note where config.json declares another element type than the tensors have. The tensors count."""
    text = checkpoint.config
    if "text_config" in text:
        text = text.section("text_config")
    declared = text.string("dtype", default=None) or text.string("torch_dtype", default=None)
    stored = checkpoint.tensors[names("model.embed_tokens.weight")].dtype
    known = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    if declared is None or known.get(declared, stored) == stored:
        return ()
    return (f"weights: config.json says {declared}, the tensors are {DTYPES[stored].name.lower()}; the tensors count",)


def _write_manifest(staging: Path, options: BuildOptions, plan: _Plan) -> dict[str, int]:
    """Write the list of the folder's files, by which a later export knows that it may replace them."""
    files = {path.name: path.stat().st_size for path in sorted(staging.iterdir())}
    manifest = {
        "tool": "draftsmith",
        "version": __version__,
        "precision": options.precision,
        "execution_provider": options.provider,
        "options": _given(options) | {"context_length": plan.config.model.context_length},
        "files": files,
        "notes": plan.notes,
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (staging / MANIFEST).write_text(text, encoding="utf-8")
    return files | {MANIFEST: len(text.encode())}


def _given(options: BuildOptions) -> dict[str, object]:
    """The options that hold, those that are left to others aside."""
    values = {option.name: getattr(options, option.name) for option in OPTIONS}
    return {name: value for name, value in values.items() if value not in (None, ())}


def readable(size: int) -> str:
    """A number of bytes for people, in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"
