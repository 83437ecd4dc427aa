"""Drafters that their producers' own packages wrote, with what those packages' code computes of them.

tests/assets/producers holds 37 tiny drafters (two or three layers, random weights in every parameter) for one target of
640 tokens, each written by its producer's exporter and run by its producer's modules, in float32 with rotary tables
rounded to bfloat16. Tensors that several of them share are stored once; README.md there says how.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from safetensors.numpy import save_file

from draftsmith.validation.session import Array
from tests.checkpoints import PREFIX, Json, Tensors, variant

ASSETS = Path(__file__).parent / "assets" / "producers"
_DTYPES: dict[str, Any] = {"BF16": ml_dtypes.bfloat16, "F32": "<f4", "I64": "<i8", "BOOL": "?"}


@dataclass(frozen=True)
class Case:
    """One drafter.

    Attributes:
        name: Its producer with the version, and what it is.
        producer: The package and the version.
        options: What an export of it needs.
        mask: The mask token.
        contexts: The lengths of the texts after which it drafted.
        config: Its ``config.json``.
        tensors: Of each tensor the element type, the shape and the key under which its bytes are stored.
    """

    name: str
    producer: str
    options: tuple[str, ...]
    mask: int
    contexts: tuple[int, ...]
    config: Json
    tensors: dict[str, tuple[str, list[int], str]]

    def write(self, folder: Path) -> Path:
        """Its folder, as its producer wrote it."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        arrays = {name: _tensor(*entry) for name, entry in self.tensors.items()}
        save_file(arrays, folder / "model.safetensors")
        return folder

    def expected(self, context: int, part: str) -> Array:
        """What the producer's code gave after a context: ``hidden``, ``ids``, ``scores`` or ``path``."""
        return _archive("expected")[f"{self.name}/{context}/{part}"]


def taps(rows: int) -> Array:
    """The streams that all of these drafters read, of a text's first tokens, ``[rows, 3 * hidden]``."""
    return np.concatenate(list(_archive("base")["streams"][:, :rows]), axis=-1)


def text() -> list[int]:
    """The text's tokens."""
    return [int(token) for token in _archive("base")["ids"]]


def target(folder: Path) -> Path:
    """The bundled target with the embedding and the head of the one that these drafters were made for."""

    def change(weights: Tensors) -> None:
        for name, key in ((f"{PREFIX}embed_tokens.weight", "embed"), ("lm_head.weight", "head")):
            weights[name] = torch.from_numpy(_archive("base")[key].copy()).view(torch.bfloat16)

    return variant(folder, tensors=change)


@cache
def cases() -> dict[str, Case]:
    """All of them by name."""
    found = json.loads((ASSETS / "cases.json").read_text())
    return {
        name: Case(
            name,
            entry["producer"],
            tuple(entry["options"]),
            entry["mask"],
            tuple(entry["contexts"]),
            entry["config"],
            {tensor: tuple(stored) for tensor, stored in entry["tensors"].items()},
        )
        for name, entry in found.items()
    }


@cache
def _archive(name: str) -> dict[str, Array]:
    with np.load(ASSETS / f"{name}.npz") as archive:
        return dict(archive)


def _tensor(dtype: str, shape: list[int], key: str) -> Array:
    """Stored bytes lie apart, all first ones before all second ones, which compresses better."""
    return np.ascontiguousarray(_archive("tensors")[key].T).view(_DTYPES[dtype]).reshape(shape)
