"""The build: checks first, all of them; then a staging folder; then one step that puts it in place."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from builder.drafter import Drafter, plan_drafter, settle
from builder.drafter import notes as drafter_notes
from builder.drafter import read as read_drafter
from builder.drafter_cost import DrafterCost, target_token_bytes
from builder.located import located
from builder.option_table import OPTIONS
from builder.options import BuildOptions
from builder.output import LAST, MANIFEST, OutputFolder, mendable
from builder.provenance import recorded_name, sources
from builder.qwen35.borders import TargetOptions
from builder.qwen35.config import TargetConfig, read_target_config
from builder.qwen35.dense import build_dense
from builder.qwen35.names import EMBEDDING, HEAD, StoredNames, find_names
from builder.qwen35.norms import check_norms
from builder.qwen35.packed import build_packed
from builder.runtime_config import (
    check_names,
    drafter_section,
    search_notes,
    shared_initializers,
    stop_ids,
    target_genai_config,
)
from builder.sizes import readable
from builder.tokenizer import TokenizerFiles, generation_config, plan_tokenizer, stop_notes
from drafters.checkpoint.conventions import NORMED, RAW
from drafters.graph.drafter import DrafterOptions
from genai_config.sections import GenaiConfig
from onnxkit import __version__
from onnxkit.errors import ExportError
from onnxkit.layers.basic import Style
from onnxkit.progress import progress_bar
from onnxkit.text import clipped, escaped
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.manifest import plan_tensors
from onnxkit.weights.safetensors_file import DTYPES
from onnxkit.weights.save import external_bytes, save, shared_parameters, stored_tensors

MODEL_FILE = "model.onnx"

_log = logging.getLogger(__name__)

DTYPE_OF = {"fp32": ir.DataType.FLOAT, "fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}

# Tokens in a page, and the tiles of the flash attention kernel by the widest head that they are for.
DEFAULT_PAGE = 256
_TILES, _SMALLEST_TILE = ((64, 256), (128, 128)), 64

# Room for what is not weights: the graph, the configuration. A 64-layer graph is under 2 MB.
_GRAPH_BYTES = 4 << 20


@dataclass(frozen=True)
class Report:
    """What an export did: the folder, its files with their sizes in bytes, the seconds it took, notes, the drafter."""

    folder: Path
    files: dict[str, int]
    seconds: float
    notes: tuple[str, ...]
    drafter: tuple[str, ...] = ()

    def __str__(self) -> str:
        width = max(map(len, self.files))
        lines = [f"Exported to {escaped(str(self.folder))} in {self.seconds:.1f} s:"]
        lines += [f"  {name:<{width}}  {readable(size):>10}" for name, size in self.files.items()]
        lines += [f"  {'in all':<{width}}  {readable(sum(self.files.values())):>10}"]
        lines += self.drafter
        lines += [f"Note: {clipped(escaped(note))}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True)
class Plan:
    """A build that has passed every check: nothing is written yet, and no weight read.

    Attributes:
        options: The request, with all that follows from the checkpoints filled in.
        model: The target's graph, every initializer with its tensor.
        config: ``genai_config.json``, but for where shared tensors lie.
        tokenizer: The tokenizer's files.
        notes: What the user should know, a line each.
        drafter: The drafter's part, where there is one.
    """

    options: BuildOptions
    model: ir.Model
    config: GenaiConfig
    tokenizer: TokenizerFiles
    notes: tuple[str, ...]
    checkpoint: Checkpoint
    drafter: DrafterPlan | None = None

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """All that is read: the target's folder, and the drafter's where there is one."""
        return [self.checkpoint, *([self.drafter.cost.drafter.checkpoint] if self.drafter else [])]

    def weights(self) -> int:
        """Bytes of weights that will be written."""
        return sum(map(external_bytes, self.models))

    @property
    def models(self) -> list[ir.Model]:
        """The target's graph, and the drafter's where there is one."""
        return [self.model, *([self.drafter.model] if self.drafter else [])]


@dataclass(frozen=True)
class DrafterPlan:
    """A drafter's part of a build."""

    model: ir.Model
    cost: DrafterCost


def export(options: BuildOptions) -> Report:
    """Export a checkpoint.

    Raises:
        ExportError: Something in the request or the checkpoint is not right; the output is as it was.
    """
    start = time.monotonic()
    options, folder = located(options, _judge)
    output = _output(options, folder)
    build = plan(options, folder)
    weights = build.weights()
    _log.info("planned: every check has passed; %s of weights to write", readable(weights))
    output.check_room(weights + build.tokenizer.size() + _GRAPH_BYTES)
    with output as staging, mendable(options.output):
        with progress_bar(weights, "Writing weights") as progress:
            _log.info("writing to %s", staging)
            files = write(build, staging, progress)
        for checkpoint in build.checkpoints:
            checkpoint.check_unchanged()
        output.commit()
        _log.info("the files of the checkpoints are as they were; %s is in place", options.output)
    lines = tuple(build.drafter.cost.lines()) if build.drafter else ()
    return Report(options.output, files, time.monotonic() - start, (*build.notes, *output.notes), lines)


def write(build: Plan, folder: Path, progress: Callable[[int], object] | None = None) -> dict[str, int]:
    """Write all files of a planned build to an empty folder: the same plan, the same bytes. Gives their sizes."""
    _log.info("%s and %s.data: %d nodes", MODEL_FILE, MODEL_FILE, len(build.model.graph))
    save(build.model, folder / MODEL_FILE, progress)
    config = _save_drafter(build, folder, progress) if build.drafter else build.config
    (folder / LAST).write_text(config.to_json(), encoding="utf-8")
    build.tokenizer.write(folder)
    _log.info("%s and the tokenizer's files", LAST)
    return _write_manifest(folder, build)


def _save_drafter(plan: Plan, staging: Path, progress: Callable[[int], object] | None) -> GenaiConfig:
    """Write the drafter beside the target, whose data file it refers to; gives the configuration that says so."""
    assert plan.drafter is not None and plan.config.model.drafter is not None
    graph, drafter_file = plan.drafter.model.graph, plan.config.model.drafter.filename
    shared = stored_tensors(staging / MODEL_FILE, [str(value.name) for value in shared_parameters(plan.drafter.model)])
    for name, tensor in shared.items():
        graph.initializers[name].const_value = tensor
    _log.info("%s: %d nodes, %d tensors shared", drafter_file, len(graph), len(shared))
    save(plan.drafter.model, staging / drafter_file, progress, kept=shared)
    return plan.config.sharing(shared_initializers(shared.values()))


def _output(options: BuildOptions, folder: Path) -> OutputFolder:
    return OutputFolder(options.output, [folder, *([options.drafter] if isinstance(options.drafter, Path) else [])])


def _judge(options: BuildOptions, folder: Path, headers_only: frozenset[Path]) -> None:
    """See what a build would fail for, before the weights are downloaded."""
    build = plan(options, folder, headers_only)
    _output(options, folder).check_room(build.weights() + build.tokenizer.size() + _GRAPH_BYTES)


def plan(options: BuildOptions, folder: Path, headers_only: frozenset[Path] = frozenset()) -> Plan:
    """Plan an export of the checkpoint in a folder: everything that can fail, no weight read, nothing written.

    Args:
        options: The request.
        folder: The target's folder.
        headers_only: Folders whose weight files hold headers alone; what depends on values is not checked there.

    Raises:
        ExportError: Something in the request or the checkpoints is not right.
    """
    checkpoint = Checkpoint(folder, headers_only=folder in headers_only)
    config = read_target_config(checkpoint.config)
    names = find_names(checkpoint, config)
    check_norms(checkpoint, config, names)
    context_length = _context_length(options, config)
    bare = options.drafter in headers_only
    drafter = read_drafter(options, config, checkpoint, names, headers_only=bare) if options.drafter else None
    page_size = _page_size(options, drafter)
    if drafter:
        options = settle(options, drafter, context_length, page_size)
    options = _settled_taps(options, config)
    target = _target_options(options, config, names, context_length, page_size)
    model, module = (build_packed if options.use_paged_attention else build_dense)(config, target)
    plan_tensors(module, checkpoint, names, allow_nonfinite=options.allow_nonfinite)
    generation = generation_config(checkpoint)
    section = drafter_section(drafter, options, context_length) if drafter else None
    genai = target_genai_config(config, options, target, generation, MODEL_FILE, section)
    check_names(genai.model.decoder, model.graph)
    tokenizer = plan_tokenizer(checkpoint)
    notes = [
        *names.notes,
        *_dtype_note(checkpoint, names),
        *checkpoint.index_notes(),
        *tokenizer.notes,
        *stop_notes(checkpoint, stop_ids(config, generation)),
        *search_notes(generation, drafter is not None),
    ]
    build = Plan(options, model, genai, tokenizer, tuple(notes), checkpoint)
    return _with_drafter(build, drafter, target, config) if drafter else build


def _with_drafter(plan: Plan, drafter: Drafter, target: TargetOptions, config: TargetConfig) -> Plan:
    """The same build with the drafter's graph."""
    options = plan.options
    graph_options = DrafterOptions(
        dtype=target.style.dtype,
        context_length=target.context_length,
        page_size=target.page_size,
        embedding=EMBEDDING,
        head=EMBEDDING if target.tied else HEAD,
    )
    model = plan_drafter(drafter, graph_options, allow_nonfinite=options.allow_nonfinite)
    assert plan.config.model.drafter is not None and options.max_batch_size is not None
    check_names(plan.config.model.drafter, model.graph)
    cost = DrafterCost(
        drafter,
        own=external_bytes(model),
        shared=sum(shared.byte_count for shared in shared_parameters(model)),
        target_token=target_token_bytes(config),
        page_size=target.page_size,
        pages=drafter.ring_pages(target.context_length, target.page_size),
        requests=options.max_batch_size,
    )
    cost.check_blocks(options.num_blocks)
    notes = [*plan.notes, *drafter_notes(drafter, options, target.context_length)]
    return replace(plan, drafter=DrafterPlan(model, cost), notes=(*notes, *cost.note(target.context_length)))


def _target_options(
    options: BuildOptions, config: TargetConfig, names: StoredNames, context_length: int, page_size: int
) -> TargetOptions:
    return TargetOptions(
        context_length=context_length,
        prune_lm_head=options.prune_lm_head,
        include_hidden_states=options.include_hidden_states,
        tied=names.tied,
        style=Style(DTYPE_OF[options.precision]),
        taps=options.aux_hidden_state_layers,
        normed_last_tap=options.last_tap == NORMED,
        page_size=page_size,
        capacity=options.state_update_capacity or 0,
    )


def _settled_taps(options: BuildOptions, config: TargetConfig) -> BuildOptions:
    """The options with what a tap on the last layer is. One that is given by hand is the stream before the norm.

    A tap is the stream entering a layer; the number of layers stands for the stream that leaves the last one.
    """
    taps, count = options.aux_hidden_state_layers, config.num_hidden_layers
    if taps and max(taps) > count:
        raise ExportError(
            "A tap is beyond the last layer.",
            where=f"--extra_options aux_hidden_state_layers={','.join(map(str, taps))}",
            found=max(taps),
            accepted=f"1 to {count}: the stream entering that layer, {count} for what leaves the last one",
            fix="Name layers that the checkpoint has.",
        )
    if count in taps:
        return replace(options, last_tap=options.last_tap or RAW)
    if options.last_tap:
        raise ExportError(
            "An option speaks of a tap that there is not.",
            where=f"--extra_options last_tap={options.last_tap}",
            found=f"taps {', '.join(map(str, taps)) or 'on no layer'}",
            accepted=f"last_tap beside a tap on the last layer, {count}",
            fix="Leave last_tap out.",
        )
    return options


def _page_size(options: BuildOptions, drafter: Drafter | None) -> int:
    """Tokens in a page, which both graphs share.

    Attention sinks run on the flash kernel alone, which reads whole tiles, whose size goes by the head's width. All
    else runs with pages of any size.
    """
    size = options.paged_block_size or DEFAULT_PAGE
    if drafter is None or not drafter.config.attention_sinks:
        return size
    width = drafter.config.head_dim
    tile = next((tile for most, tile in _TILES if width <= most), _SMALLEST_TILE)
    if size % tile:
        raise ExportError(
            "The page is smaller than the tile of the attention kernel that takes sinks.",
            where=f"--extra_options paged_block_size={size}",
            found=f"{size}, with a drafter whose attention has sinks",
            accepted=f"a power of two from {tile} (the drafter's heads are {width} wide)",
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


def _write_manifest(staging: Path, plan: Plan) -> dict[str, int]:
    """Write the list of the folder's files, by which a later export knows that it may replace them."""
    files = {path.name: path.stat().st_size for path in sorted(staging.iterdir())}
    options = plan.options
    manifest = {
        "tool": "draftsmith",
        "version": __version__,
        "precision": options.precision,
        "execution_provider": options.provider,
        "options": _given(options) | {"context_length": plan.config.model.context_length},
        "files": files,
        "notes": plan.notes,
    }
    if known := sources(plan.checkpoints):
        manifest["sources"] = known
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    data = text.encode(errors="backslashreplace")  # a path may hold bytes that are no text; JSON writes them so
    (staging / MANIFEST).write_bytes(data)
    return files | {MANIFEST: len(data)}


def _given(options: BuildOptions) -> dict[str, object]:
    """The options that hold, those that are left to others aside."""
    values = {option.name: getattr(options, option.name) for option in OPTIONS}
    given = {name: value for name, value in values.items() if value not in (None, ())}
    return {name: recorded_name(value) if isinstance(value, Path) else value for name, value in given.items()}
