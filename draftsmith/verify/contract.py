"""Checks of what the runtime expects: the configuration's numbers against the graphs' and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from drafters.checkpoint.kinds import RuntimeKind
from draftsmith.verify.checks import Results
from draftsmith.verify.folder import ExportFolder, Graph
from genai_config.runtime import DEFAULT_DRAFTS, ENGINE_DRAFTS


def check_contract(export: ExportFolder, results: Results) -> None:
    """Check the decoder's section, and the drafter's if there is one."""
    checks = {"decoder's section": ("its numbers are those of the graph", _decoder_faults(export))}
    if export.packed:
        checks["engine's section"] = ("pages and states are those of the graphs", _engine(export))
    if export.drafter:
        title = f"{export.drafter.role}'s section"
        checks[title] = ("its numbers are those of the graph", _drafter_faults(export, export.drafter))
        checks["sharing"] = ("both sections and both graphs name the same bytes", _sharing(export))
        checks["drafting"] = ("nothing keeps the Engine from drafting", _drafting(export, export.drafter))
    for name, (what, faults) in checks.items():
        with results.guarded(name):
            results.stated(name, what, list(faults))


def shape_of(value: ir.Value) -> list[Any]:
    """A value's shape: numbers, and the names of dynamic dimensions."""
    return [dim if isinstance(dim, int) else str(dim) for dim in value.shape or ()]


def named(graph: Graph, name: str) -> ir.Value | None:
    """An input or output by name."""
    values = (*graph.model.graph.inputs, *graph.model.graph.outputs)
    return next((value for value in values if value.name == name), None)


def attention_nodes(graph: Graph) -> list[ir.Node]:
    """The attention nodes, in the layers' order."""
    return graph.nodes("PagedAttention", "GroupQueryAttention")


def window_of(node: ir.Node) -> int | None:
    """An attention node's window; None if it has none."""
    attribute = node.attributes.get("local_window_size")
    return attribute.as_int() if attribute is not None and attribute.as_int() > 0 else None


def _differ(what: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"{what} is {found}; the graph has {expected}"


def _cache_faults(graph: Graph, where: str, page: int | None) -> Iterator[str]:
    """Layers, heads and widths of the cache inputs."""
    section = graph.section
    template = section.get("inputs", {}).get("past_key_names", "past_key_values.%d.key")
    caches = [v for i in range(1024) if (v := named(graph, str(template).replace("%d", str(i)))) is not None]
    if not caches:
        yield f"{graph.path.name} has no cache named by {where}.inputs, so nothing was compared"
    for cache in caches[:1]:
        sizes = shape_of(cache)
        heads, width = (sizes[2], sizes[3]) if page is not None else (sizes[1], sizes[3])
        yield from _differ(f"{where}.num_key_value_heads", section.get("num_key_value_heads"), heads)
        yield from _differ(f"{where}.head_size", section.get("head_size"), width)
        if page is not None and isinstance(sizes[1], int):
            yield from _differ("engine.dynamic_batching.block_size", page, sizes[1])
    if graph.role != "decoder":
        yield from _differ(f"{where}.num_hidden_layers", section.get("num_hidden_layers"), len(caches))


def _table_faults(graph: Graph, needed: int) -> Iterator[str]:
    """Each layer's rotary tables, which attention reads, must cover every position."""
    for node in attention_nodes(graph):
        index = 8 if node.op_type == "PagedAttention" else 7
        table = node.inputs[index] if len(node.inputs) > index else None
        count = table.shape[0] if table is not None and table.shape is not None else None
        if isinstance(count, int) and count < needed:
            yield f"{graph.path.name}: rotary tables have {count} positions; {needed} can occur"
            return


def _decoder_faults(export: ExportFolder) -> Iterator[str]:
    model, graph = export.config["model"], export.decoder
    logits = named(graph, str(graph.section.get("outputs", {}).get("logits", "logits")))
    if logits is None:
        yield "the graph has no logits"
    else:
        yield from _differ("model.vocab_size", model.get("vocab_size"), shape_of(logits)[-1])
    page = _batching(export).get("block_size") if export.packed else None
    yield from _cache_faults(graph, "model.decoder", page)
    context = model.get("context_length", 0)
    yield from _table_faults(graph, context)
    longest = export.config.get("search", {}).get("max_length", context)
    if longest > context:
        yield f"search.max_length is {longest}, model.context_length {context}"


def _batching(export: ExportFolder) -> dict[str, Any]:
    found = export.config.get("engine", {}).get("dynamic_batching", {})
    return found if isinstance(found, dict) else {}


def _engine(export: ExportFolder) -> Iterator[str]:
    graph, section = export.decoder, export.decoder.section
    inputs = section.get("inputs", {})
    kinds = {"paged_kv": "past_key_names", "fixed_conv": "past_conv_names", "fixed_recurrent": "past_recurrent_names"}
    groups = {group.get("kind"): group for group in section.get("state_groups", [])}
    for kind, key in kinds.items():
        template = str(inputs.get(key, ""))
        layers = [i for i in range(section.get("num_hidden_layers", 0)) if named(graph, template.replace("%d", str(i)))]
        yield from _differ(f"state_groups: layers of {kind}", groups.get(kind, {}).get("layer_ids", []), layers)
    yield from _update_faults(graph, groups)
    if not _batching(export):
        yield "engine.dynamic_batching is missing"


def _update_faults(graph: Graph, groups: dict[Any, Any]) -> Iterator[str]:
    """State that can be rolled back must be captured: capacity in the configuration, rows in the graph."""
    captured = [v for v in graph.model.graph.outputs if str(v.name).startswith("state_update")]
    rows = {shape_of(value)[1] for value in captured if len(shape_of(value)) == 3}
    for kind in ("fixed_conv", "fixed_recurrent"):
        update = groups.get(kind, {}).get("state_update", {})
        if captured and not update:
            yield f"state_groups: {kind} has no state_update, but the graph captures {rows or 'rows'}"
        elif update and not captured:
            yield f"state_groups: {kind} has a state_update, but the graph captures nothing"
        elif update and rows and rows != {update.get("capacity")}:
            yield f"state_groups: {kind} has a capacity of {update.get('capacity')}; the graph captures {rows}"
    attributes = {n.attributes["state_update_capacity"].as_int() for n in graph.nodes("GatedDeltaNet") if captured}
    if captured and attributes != rows:
        yield f"GatedDeltaNet captures {attributes} rows, the convolutions {rows}"


def _drafter_faults(export: ExportFolder, graph: Graph) -> Iterator[str]:
    section, where = graph.section, f"model.{graph.role}"
    block, drafts = section.get("block_size", 0), section.get("num_draft_tokens", 0)
    expected = block - 1 if graph.role == RuntimeKind.DFLASH2 else block
    if drafts != expected:
        yield f"{where}.num_draft_tokens is {drafts}, for a block_size of {block} it must be {expected}"
    outputs = section.get("outputs", {})
    for key, default, axes in (("candidate_ids", "draft_candidate_ids", 3), ("scores", "draft_scores", 4)):
        value = named(graph, str(outputs.get(key, default)))
        if value is not None:
            yield from _differ(f"{where}.num_draft_tokens", drafts, shape_of(value)[1])
            for size in shape_of(value)[2:axes]:
                yield from _differ(f"{where}.selector_top_k", section.get("selector_top_k"), size)
    yield from _cache_faults(graph, where, _batching(export).get("block_size", 0))
    vocab = export.config["model"].get("vocab_size", 0)
    if not 0 <= section.get("mask_token_id", -1) < vocab:
        yield f"{where}.mask_token_id is {section.get('mask_token_id')}, of a vocabulary of {vocab}"
    yield from _table_faults(graph, export.config["model"].get("context_length", 0) + block)
    yield from _aux_faults(export, graph)
    yield from _window_faults(export, graph, block)


def _aux_faults(export: ExportFolder, graph: Graph) -> Iterator[str]:
    name = graph.section.get("main_aux_hidden_states", "aux_hidden_states")
    given = named(export.decoder, name)
    taken = named(graph, graph.section.get("inputs", {}).get("aux_hidden_states", "aux_hidden_states"))
    if given is None or taken is None:
        yield f"main_aux_hidden_states is {name}, which is not an output of {export.decoder.path.name}"
        return
    if (given.dtype, shape_of(given)[-1]) != (taken.dtype, shape_of(taken)[-1]):
        yield f"the target gives {given.dtype} {shape_of(given)}, the drafter takes {taken.dtype} {shape_of(taken)}"
    layers = graph.section.get("aux_hidden_state_layers", [])
    hidden = export.decoder.section.get("hidden_size", 0)
    if layers and hidden and len(layers) * hidden != shape_of(given)[-1]:
        yield f"aux_hidden_state_layers are {layers}; {shape_of(given)[-1]} channels are {hidden} for each of others"


def _window_faults(export: ExportFolder, graph: Graph, block: int) -> Iterator[str]:
    """The runtime's ring aliases pages that only the operator's window hides."""
    ring = graph.section.get("sliding_window", -1)
    windows = [window_of(node) for node in attention_nodes(graph)]
    longest = export.config["model"].get("context_length", 0) + block
    if ring <= 0:
        if graph.role == RuntimeKind.DFLASH2:
            yield f"model.{graph.role}.sliding_window is {ring}; it must be positive"
        return
    wide = [window for window in windows if window is None]
    if wide and ring < longest:
        yield f"sliding_window is {ring}, but layers see everything, of up to {longest} positions"
    widest = max((window for window in windows if window is not None), default=0)
    if not wide and ring != widest:
        yield f"sliding_window is {ring}; the graph's widest window is {widest}"


def _sharing(export: ExportFolder) -> Iterator[str]:
    """The entries of both sections against the references of both graphs."""
    assert export.drafter is not None
    entries = [graph.section.get("shared_initializers") or [] for graph in export.graphs]
    if entries[0] != entries[1]:
        yield f"shared_initializers differ between decoder and {export.drafter.role}"
    for graph, listed in zip(export.graphs, entries, strict=True):
        for entry in listed:
            tensor = graph.initializers.get(entry.get("name"))
            if not isinstance(tensor, ir.ExternalTensor):
                yield f"{graph.path.name} has no initializer {entry.get('name')} in a data file"
                continue
            place = [str(tensor.location), str(tensor.offset or 0), str(tensor.nbytes), int(tensor.dtype)]
            place += [[int(size) for size in tensor.shape.numpy()]]
            found = [entry.get(key) for key in ("data_file", "offset", "length", "data_type", "shape")]
            if found != place:
                yield f"shared_initializers: {entry.get('name')} is {found}; {graph.path.name} has {place}"
    names = {str(entry.get("name")) for entry in entries[0]}
    lying = {n for n, t in export.drafter.initializers.items() if _location(t) == f"{export.decoder.path.name}.data"}
    if lying != names:
        yield f"{export.drafter.path.name} refers to {sorted(lying)} of the target, listed are {sorted(names)}"


def _location(tensor: ir.TensorProtocol) -> str | None:
    return str(tensor.location) if isinstance(tensor, ir.ExternalTensor) else None


def _drafting(export: ExportFolder, graph: Graph) -> Iterator[str]:
    """Settings under which the Engine silently drafts nothing, or less than it could."""
    drafts = graph.section.get("num_draft_tokens", 0)
    most = export.config.get("speculative", {}).get("max_draft_tokens")
    if most is None:
        yield f"speculative.max_draft_tokens is missing; the runtime then takes {DEFAULT_DRAFTS}"
    elif not 1 <= most <= min(drafts, ENGINE_DRAFTS):
        yield f"speculative.max_draft_tokens is {most}, of at most {min(drafts, ENGINE_DRAFTS)}"
    for group in export.decoder.section.get("state_groups", []):
        capacity = group.get("state_update", {}).get("capacity", 0)
        if group.get("kind") != "paged_kv" and capacity < (most or 1):
            yield f"state_groups: {group.get('kind')} can take back {capacity} drafts, of {most}"
    search = export.config.get("search", {})
    if search.get("repetition_penalty", 1) != 1 or search.get("no_repeat_ngram_size", 0):
        yield "search has a repetition penalty, which turns drafts off"
    if search.get("do_sample"):
        yield "search.do_sample is true"
    if graph.role == RuntimeKind.DSPARK and _batching(export).get("prefix_caching"):
        yield "prefix_caching is true, which the Engine does not support with a DSpark drafter"
