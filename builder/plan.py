"""The plan of an export: everything that can fail fails here, before a weight is read or a byte is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from builder.drafter import read as read_drafter
from builder.drafter_graph import drafter_graph
from builder.families import open_target
from builder.family import Target, TargetOptions
from builder.options import BuildOptions
from builder.package import GraphPlan, Package
from builder.resolved import Resolved, resolve
from builder.runtime_config import genai_config, search_notes, session_options, stop_ids
from builder.tokenizer import TokenizerFiles, generation_config, plan_tokenizer, stop_notes
from drafters.checkpoint.conventions import NORMED
from genai_config.sections import GenaiConfig
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.safetensors_file import DTYPES

TARGET, MODEL_FILE = "decoder", "model.onnx"


@dataclass(frozen=True)
class Plan:
    """A build that has passed every check: nothing is written yet, and no weight read.

    Attributes:
        options: The request.
        resolved: What holds where the request leaves it open.
        package: The graphs.
        config: ``genai_config.json``, but for where shared tensors lie.
        tokenizer: The tokenizer's files.
        notes: What the user should know, a line each.
    """

    options: BuildOptions
    resolved: Resolved
    package: Package
    config: GenaiConfig
    tokenizer: TokenizerFiles
    notes: tuple[str, ...]

    def hollow(self) -> Plan:
        """The same build without its weights: what would be written can be looked at without writing gigabytes."""
        return replace(self, package=self.package.hollow())


def plan(options: BuildOptions, folder: Path, headers_only: frozenset[Path] = frozenset()) -> Plan:
    """Plan an export of the checkpoint in a folder: everything that can fail, no weight read, nothing written.

    Args:
        options: The request.
        folder: The target's folder.
        headers_only: Folders whose weight files hold headers alone; what depends on values is not checked there.

    Raises:
        ExportError: Something in the request or the checkpoints is not right.
    """
    target = open_target(Checkpoint(folder, headers_only=folder in headers_only))
    drafter = read_drafter(options, target, headers_only=options.drafter in headers_only) if options.drafter else None
    resolved = resolve(options, target.config, drafter)
    graphs = [target_graph(target, options, resolved)]
    if drafter is not None:
        graphs.append(drafter_graph(drafter, target, options, resolved, graphs[0]))
    package = Package(tuple(graphs))
    generation = generation_config(target.checkpoint)
    config = genai_config(target, options, resolved, generation, package)
    tokenizer = plan_tokenizer(target.checkpoint)
    notes = [
        *graphs[0].notes,
        *tokenizer.notes,
        *stop_notes(target.checkpoint, stop_ids(target.config, generation)),
        *search_notes(generation, drafter is not None),
        *(note for graph in graphs[1:] for note in graph.notes),
    ]
    return Plan(options, resolved, package, config, tokenizer, tuple(notes))


def target_graph(target: Target, options: BuildOptions, resolved: Resolved) -> GraphPlan:
    """The target's entry of the package.

    Raises:
        ExportError: Tensors are missing, misshapen, of another type, or read by nothing.
    """
    asked = TargetOptions(
        context_length=resolved.context_length,
        prune_lm_head=options.prune_lm_head,
        include_hidden_states=options.include_hidden_states,
        tied=target.tied,
        precision=resolved.precision,
        taps=resolved.taps,
        normed_last_tap=resolved.last_tap == NORMED,
        page_size=resolved.page_size,
        capacity=resolved.state_update_capacity or 0,
    )
    model = target.build(asked, resolved.packed)
    tensors = plan_tensors(
        model.graph,
        target.checkpoint,
        target.stored_name,
        target.left_out,
        allow_nonfinite=options.allow_nonfinite,
    )
    section = target.section(asked, resolved.packed, MODEL_FILE, session_options(options))
    notes = (*target.notes, *_dtype_note(target), *tensors.index_notes())
    return GraphPlan(TARGET, section, model, tensors, target.checkpoint, notes)


def _dtype_note(target: Target) -> Sequence[str]:
    """A note where config.json declares another element type than the tensors have. The tensors count."""
    declared = target.text.string("dtype", default=None) or target.text.string("torch_dtype", default=None)
    stored = target.checkpoint.tensors[target.stored_name(target.embedding)].dtype
    known = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    if declared is None or known.get(declared, stored) == stored:
        return ()
    found = ir.DataType.from_numpy(DTYPES[stored]).name.lower()
    return (f"weights: config.json says {declared}, the tensors are {found}; the tensors count",)
