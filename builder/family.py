"""A target family: all that the rest of the tool knows of the models that it exports.

A family is one record. It opens a checkpoint's folder and checks it, and what it gives builds the graph and its section
of the configuration. Nothing outside the family's own folder imports anything else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from builder.model_config import ModelConfig
from genai_config.sections import Decoder, SessionOptions
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Table
from onnxkit.layers.precision import Precision
from onnxkit.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class TargetOptions:
    """What the user may choose about a target's graph.

    Attributes:
        context_length: Positions that the rotary tables cover.
        prune_lm_head: Logits of chosen tokens only: dense, the last one; packed, those of ``logits_indices``.
        include_hidden_states: A further output with the final norm's output for every token.
        tied: The head reads the embedding's table.
        precision: The graph's precision.
        taps: Layers whose entering residual stream is put out, one beside the other; the number of layers stands for
            the stream that enters the final norm.
        page_size: Packed: tokens in a page of the cache.
        capacity: Packed: rows of a sequence whose state changes can be captured, 0 for none.
        normed_last_tap: Whether the last layer's tap is what leaves the final norm instead.
    """

    context_length: int
    prune_lm_head: bool
    include_hidden_states: bool
    tied: bool
    precision: Precision
    taps: tuple[int, ...] = ()
    page_size: int = 256
    capacity: int = 0
    normed_last_tap: bool = False


@dataclass(frozen=True)
class Target:
    """A target's folder, opened and checked: the only weights read are those that tell conventions apart.

    Attributes:
        model_type: The runtime's code for it: ``type`` in ``genai_config.json``.
        checkpoint: The folder, opened.
        text: The text model's part of ``config.json``.
        config: Its configuration.
        stored_name: The checkpoint's name of a name in the graph.
        left_out: The stored tensors that no graph of an export has a use for, each with the reason.
        embedding: The graph's name of the embedding.
        head: The graph's name of the LM head's table: the embedding's where they are one.
        stored_as: How the checkpoint names the text model and its head, for people.
        notes: What the user should know of the checkpoint, a line each.
        token_bytes: Bytes of a packed graph's cache for a position, in 16 bits.
        build: Builds the graph, packed or dense; its parameters say where their bytes come from.
        section: Its section of the runtime's configuration, packed or dense, in a file of some name.
    """

    model_type: str
    checkpoint: Checkpoint
    text: JsonObject
    config: ModelConfig
    stored_name: Callable[[str], str]
    left_out: Mapping[str, str]
    embedding: str
    head: str
    stored_as: str
    notes: tuple[str, ...]
    token_bytes: int
    build: Callable[[TargetOptions, bool], ir.Model]
    section: Callable[[TargetOptions, bool, str, SessionOptions], Decoder]

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding's table."""
        return self.head == self.embedding


@dataclass(frozen=True)
class TargetFamily:
    """A target family.

    Attributes:
        title: What to call it.
        architectures: The names in ``config.json`` by which its checkpoints are known.
        embedding: The graph's name of the embedding.
        head: The graph's name of an LM head of its own.
        keys: Every key of its ``config.json`` that is known.
        sections: The parts of ``config.json`` whose keys count, the text model's last.
        open: Opens and checks a checkpoint; raises ExportError where it is not one of the family.
    """

    title: str
    architectures: tuple[str, ...]
    embedding: str
    head: str
    keys: Table
    sections: Callable[[JsonObject], list[JsonObject]]
    open: Callable[[Checkpoint], Target]
