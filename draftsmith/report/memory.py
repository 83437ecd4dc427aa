"""What an export takes: bytes on the disk, and bytes of cache and state while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from draftsmith.verify.contract import attention_nodes, shape_of
from draftsmith.verify.folder import ExportFolder, Graph
from genai_config import runtime


@dataclass(frozen=True)
class Plan:
    """What a run needs besides the weights, in bytes.

    Attributes:
        target_token: The target's cache for one position.
        drafter_token: The drafter's cache for one position; 0 without a drafter.
        state: The linear layers' state for one request.
        ring: The ring of the drafter's cache for one request; 0 if it grows with the target's.
        requests: Requests at once; 1 in the dense layout.
        context: Positions that a request may have.
    """

    target_token: int
    drafter_token: int
    state: int
    ring: int
    requests: int
    context: int

    def rows(self) -> list[tuple[str, int]]:
        """The parts, and how much each takes at most."""
        rows = [
            ("target's cache, a request of full length", self.target_token * self.context),
            ("linear layers' state, a request", self.state),
        ]
        if self.ring:
            rows.append((f"drafter's rings, {self.requests} requests", self.ring * self.requests))
        elif self.drafter_token:
            rows.append(("drafter's cache, a request of full length", self.drafter_token * self.context))
        return rows


@dataclass(frozen=True)
class Weights:
    """Bytes of weights: the target's own, those that both graphs read, the drafter's own."""

    target: int
    shared: int
    drafter: int


def weights_of(export: ExportFolder) -> Weights:
    """How many bytes of the data files belong to each graph, or to both."""
    decoder = {name: tensor.nbytes for name, tensor in export.decoder.initializers.items()}
    if export.drafter is None:
        return Weights(sum(decoder.values()), 0, 0)
    places = {_place(tensor) for tensor in export.decoder.initializers.values()} - {None}
    of_drafter = export.drafter.initializers.values()
    shared = sum(tensor.nbytes for tensor in of_drafter if _place(tensor) in places)
    own = sum(tensor.nbytes for tensor in of_drafter if _place(tensor) not in places)
    return Weights(sum(decoder.values()) - shared, shared, own)


def plan_of(export: ExportFolder) -> Plan:
    """The plan, from the configuration and the graphs' shapes."""
    batching = export.config.get("engine", {}).get("dynamic_batching", {})
    drafter, page = export.drafter, batching.get("block_size", runtime.DEFAULT_PAGE)
    token = _token_bytes(drafter) if drafter else 0
    ring = 0
    if drafter and drafter.section.get("sliding_window", -1) > 0:
        window, block = drafter.section["sliding_window"], drafter.section.get("block_size", 0)
        ring = runtime.ring_pages(window, block, page) * page * token
    return Plan(
        target_token=_token_bytes(export.decoder),
        drafter_token=token,
        state=sum(_size(value) for value in export.decoder.model.graph.inputs if str(value.name).startswith("past.")),
        ring=ring,
        requests=batching.get("max_batch_size", 1),
        context=export.config["model"].get("context_length", 0),
    )


def _token_bytes(graph: Graph) -> int:
    """Keys and values of all attention layers."""
    caches = [v for v in graph.model.graph.inputs if str(v.name).startswith("past_key_values")]
    heads, width = (graph.section.get(key, 0) for key in ("num_key_value_heads", "head_size"))
    size = int(caches[0].dtype.itemsize) if caches and caches[0].dtype is not None else 2
    return runtime.token_bytes(len(attention_nodes(graph)), heads, width, size)


def _size(value: ir.Value) -> int:
    """Bytes of a value for one request."""
    sizes = [size for size in shape_of(value) if isinstance(size, int)]
    return int(math.prod(sizes) * (value.dtype.itemsize if value.dtype is not None else 2))


def _place(tensor: ir.TensorProtocol) -> tuple[str, int] | None:
    return (str(tensor.location), tensor.offset or 0) if isinstance(tensor, ir.ExternalTensor) else None
