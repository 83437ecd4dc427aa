"""The checkpoints that an export was made from: what their configurations say against what the export has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch

from builder.drafter import sharing
from builder.families import open_target as open_source
from builder.family import Target as TargetSource
from builder.model_config import ModelConfig
from drafters.checkpoint import conventions
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.conventions import NORMED, RAW
from drafters.checkpoint.identity import identity
from drafters.checkpoint.names import EMBEDDING, HEAD
from drafters.checkpoint.reading import read_identified
from draftsmith.validation.drafter_reference import ReferenceDrafter, load_drafter
from draftsmith.validation.reference import entering_streams, load_reference, load_rounding
from draftsmith.validation.session import Array
from draftsmith.validation.widen import by_real_path
from draftsmith.verify.checks import Results
from draftsmith.verify.contract import attention_nodes, window_of
from draftsmith.verify.folder import ExportFolder, Graph
from onnxkit.layers.gating import DOMINANT_EPSILON
from onnxkit.weights.checkpoint import Checkpoint

TORCH = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
}
_NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "GatedRMSNorm")


@dataclass(frozen=True)
class Expected:
    """What transformers computes for one sequence: logits ``[tokens, vocab]``, and the residual stream.

    ``streams`` are those that enter each layer and the final norm, then the final norm's output.
    """

    ids: Array
    logits: Array
    streams: list[Array]


@dataclass
class Target:
    """The target's checkpoint.

    Attributes:
        source: The folder, opened and checked as for an export.
        precision: The export's element type, to which the reference's weights are rounded.
        seen: What has been run, and in which type.
    """

    source: TargetSource
    precision: torch.dtype
    seen: dict[tuple[bytes, bool], Expected] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Checkpoint:
        """The folder."""
        return self.source.checkpoint

    @property
    def config(self) -> ModelConfig:
        """Its configuration."""
        return self.source.config

    def expected(self, ids: Array, rounded: bool = False) -> Expected:
        """Run transformers on a sequence of token ids, once: in float32, or rounded as the export is."""
        key = (ids.tobytes(), rounded)
        if key not in self.seen:
            model, batch = self.rounding if rounded else self.model, torch.tensor(ids[None])
            with torch.no_grad():
                output = model(input_ids=batch, output_hidden_states=True)
            streams = [*entering_streams(model, batch), output.hidden_states[-1]]
            found = [stream[0].float().numpy() for stream in streams]
            self.seen[key] = Expected(ids, output.logits[0].float().numpy(), found)
        return self.seen[key]

    @cached_property
    def model(self) -> Any:
        """transformers' model, with its weights rounded like the export's."""
        return load_reference(self.checkpoint.folder, self.precision)

    @cached_property
    def rounding(self) -> Any:
        """transformers' model in the export's type."""
        return load_rounding(self.checkpoint.folder, self.precision)

    def streams_of(self, taps: Sequence[int], last_tap: str | None) -> tuple[int, ...]:
        """Which stream each tap is: the one that enters the layer; for the last layer, perhaps the normed one."""
        last = self.config.num_hidden_layers
        return tuple(last + 1 if tap == last and last_tap == NORMED else tap for tap in taps)

    def table(self, name: str) -> torch.Tensor:
        """The embedding or the head, by its name in the graph, in the export's element type."""
        embedding = name == self.source.embedding
        module = self.model.get_input_embeddings() if embedding else self.model.get_output_embeddings()
        return module.weight.data.to(self.precision)


@dataclass
class DrafterSource:
    """The drafter's checkpoint.

    Attributes:
        checkpoint: The folder, opened.
        config: Its configuration, with the export's block length.
        trained_block: The block length that it was trained with.
        last_tap: What it reads of the target's last layer, ``raw`` or ``normed``.
    """

    checkpoint: Checkpoint
    config: DrafterConfig
    trained_block: int
    last_tap: str = RAW

    def reference(self, target: Target) -> ReferenceDrafter:
        """The drafter in PyTorch."""
        tables = target.table(target.source.embedding), target.table(target.source.head)
        return load_drafter(self.checkpoint.folder, self.config, *tables)


def open_target(folder: Path, export: ExportFolder) -> Target:
    """Open the target's checkpoint.

    Raises:
        ExportError: The folder is not a checkpoint that can be read.
    """
    source = open_source(Checkpoint(folder, "--target"))
    caches = (v.dtype for v in export.decoder.model.graph.inputs if str(v.name).startswith("past_key_values"))
    return Target(source, TORCH[next(caches, None) or ir.DataType.FLOAT])


def open_drafter(
    folder: Path, graph: Graph, target: Target | None, options: Mapping[str, Any] | None = None
) -> DrafterSource:
    """Open the drafter's checkpoint. Tables of its own that are the target's are shared, as in an export.

    ``options`` are those of the export: what a user chose to override in the checkpoint.

    Raises:
        ExportError: The folder is not a checkpoint that can be read.
    """
    checkpoint = Checkpoint(folder, "--drafter")
    found = identity(checkpoint)
    unsaid = [None if key in found.sections else graph.section.get(key) for key in ("selector_top_k", "block_size")]
    given = options or {}
    config = read_identified(
        checkpoint,
        found,
        *unsaid,
        rope_theta=given.get("drafter_rope_theta"),
        target_vocab=target.config.vocab_size if target else None,
    )
    if target is not None:
        config, _ = sharing(checkpoint, config, target.source)
    drafts = graph.section.get("num_draft_tokens", config.num_draft_tokens)
    last_tap = conventions.last_tap(found.dialect, given.get("last_tap"))
    return DrafterSource(checkpoint, config.shortened(drafts), config.block_size, last_tap)


def check_target_source(export: ExportFolder, target: Target, results: Results) -> None:
    """The decoder's section and the graph's attributes against the target's ``config.json``."""
    config, section, model = target.config, export.decoder.section, export.config["model"]
    expected = {
        "vocab_size": (model.get("vocab_size"), config.vocab_size),
        "hidden_size": (section.get("hidden_size"), config.hidden_size),
        "num_attention_heads": (section.get("num_attention_heads"), config.num_attention_heads),
        "num_hidden_layers": (section.get("num_hidden_layers"), config.num_hidden_layers),
        "num_key_value_heads": (section.get("num_key_value_heads"), config.num_key_value_heads),
        "head_size": (section.get("head_size"), config.head_dim),
    }
    faults = [f"{key} is {found}, in config.json {there}" for key, (found, there) in expected.items() if found != there]
    stops = model.get("eos_token_id", [])
    missing = set(config.eos_token_ids) - set(stops if isinstance(stops, list) else [stops])
    faults += [f"eos_token_id lacks {sorted(missing)}"] if missing else []
    if model.get("context_length", 0) > config.longest_context:
        faults.append(f"context_length is {model['context_length']}, beyond {config.longest_context}")
    sizes = (config.num_attention_heads, config.num_key_value_heads)
    faults += _attention_faults(
        export.decoder, sizes, config.head_dim, [(None, True)] * len(attention_nodes(export.decoder))
    )
    faults += _epsilon_faults(export.decoder, config.rms_norm_eps, config.hidden_size)
    results.stated("target's config.json", "section and graph say the same", faults)


def check_drafter_source(export: ExportFolder, source: DrafterSource, results: Results) -> None:
    """The drafter's section and the graph's attributes against its ``config.json``."""
    graph, config = export.drafter, source.config
    assert graph is not None
    expected = {
        "num_hidden_layers": len(config.layers),
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": config.head_dim,
        "block_size": config.block_size,
        "selector_top_k": config.top_k,
        "mask_token_id": config.mask_token_id,
        "aux_hidden_state_layers": list(config.taps),
    }
    found = graph.section
    faults = [f"kind is {graph.role}, by the tensors {config.kind}"] if graph.role != config.kind else []
    faults += [f"{key} is {found.get(key)}, by config.json {v}" for key, v in expected.items() if found.get(key) != v]
    if config.block_size > source.trained_block:
        faults.append(f"block_size is {config.block_size}, trained with {source.trained_block}")
    layers = [(layer.window, layer.causal) for layer in config.layers]
    sizes = (config.num_attention_heads, config.num_key_value_heads)
    faults += _attention_faults(graph, sizes, config.head_dim, layers)
    faults += _epsilon_faults(graph, config.rms_norm_eps, config.hidden_size)
    results.stated("drafter's config.json", "section and graph say the same", faults)


def _attention_faults(
    graph: Graph, heads: tuple[int, int], width: int, layers: list[tuple[int | None, bool]]
) -> Iterator[str]:
    nodes = attention_nodes(graph)
    if len(nodes) != len(layers):
        yield f"{graph.path.name} has {len(nodes)} attention nodes, not {len(layers)}"
    for node, (window, causal) in zip(nodes, layers, strict=False):
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        key = "is_causal" if node.op_type == "PagedAttention" else "causal"
        found = (attributes.get("num_heads"), attributes.get("kv_num_heads"), window_of(node), attributes.get(key, 1))
        if found != (*heads, window, int(causal)):
            yield f"{node.name}: heads, kv heads, window, causal are {found}, not {(*heads, window, int(causal))}"
        scale = attributes.get("scale", 0.0)
        if (scale and not np.isclose(scale, width**-0.5)) or attributes.get("softcap", 0.0):
            yield f"{node.name}: scale is {scale:g}, or there is a softcap; it should be one over the root of {width}"


def _epsilon_faults(graph: Graph, epsilon: float, hidden: int) -> Iterator[str]:
    """Every norm must have the configuration's epsilon. (Scaling a head to unit length has its own.)"""
    for node in graph.nodes(*_NORMS, "PagedAttention"):
        name = "qk_norm_epsilon" if node.op_type == "PagedAttention" else "epsilon"
        attribute = node.attributes.get(name)
        found = attribute.as_float() if attribute is not None else None
        if found is not None and not np.isclose(found, epsilon, rtol=1e-6) and _is_model_norm(node, hidden):
            yield f"{node.name}: {name} is {found:g}, rms_norm_eps {epsilon:g}"


def _is_model_norm(node: ir.Node, hidden: int) -> bool:
    if node.op_type == "SimplifiedLayerNormalization":
        weight = node.inputs[1]
        return weight is not None and weight.shape is not None and weight.shape[0] == hidden
    epsilon = node.attributes.get("epsilon")
    gate = node.op_type == "GatedRMSNorm" and epsilon is not None and epsilon.as_float() == DOMINANT_EPSILON
    return not gate  # a product with an activation, which is not a norm


def check_shared_bytes(export: ExportFolder, target: Target, drafter: DrafterSource | None, results: Results) -> None:
    """The embedding and the head as both graphs read them, against the checkpoint, byte for byte.

    A drafter's own tables are not the target's; what its graph computes with them is compared elsewhere.
    """
    has = {EMBEDDING: drafter.config.own_embedding, HEAD: drafter.config.own_head} if drafter else {}
    own = {name for name, there in has.items() if there}
    faults, compared = [], 0
    for graph in export.graphs:
        for name in dict.fromkeys((target.source.embedding, target.source.head)):
            tensor = graph.initializers.get(name)
            if tensor is None or (graph.role != "decoder" and name in own):
                continue
            compared += 1
            if isinstance(tensor, ir.ExternalTensor):
                tensor = by_real_path(tensor, export.path)
            expected = target.table(name)
            if tuple(tensor.shape.numpy()) != tuple(expected.shape) or tensor.numpy().tobytes() != _bytes(expected):
                faults.append(f"{graph.path.name}: {name} is not the checkpoint's")
    results.stated("shared tensors", f"{compared} tables, byte for byte the checkpoint's", faults, compared)


def _bytes(tensor: torch.Tensor) -> bytes:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).tobytes()
    return tensor.numpy().tobytes()
