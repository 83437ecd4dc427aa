"""One set of tensor names: what each producer's names mean, whatever their prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drafters.checkpoint.dialects import aliases_of, unprefixed
from onnxkit.errors import ExportError, listed
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.safetensors_file import StoredTensor, same_bytes

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"

# Of a head over a part of the vocabulary: the way from its rows to the target's ids, and a mask of those ids.
MAP, MASK = "d2t", "t2d"

# Rotary frequencies, which the graph computes.
_FREQUENCIES = re.compile(r"(^|\.)rotary_emb\.(original_)?inv_freq$")

# A codebook is a bare parameter; some loaders save it as an embedding.
_CODEBOOK = re.compile(r"^(candidate_selector\.(?:predecessor|successor)_codebook)\.weight$")

# Raw states of a training run, which a producer's own export turns into a checkpoint.
_RAW = re.compile(r"^(_fsdp_wrapped_module|_orig_mod|dflash_module|module\.dflash_module)\.|\._fsdp_wrapped_module\.")

_PACKED = re.compile(r"(_scale|_scale_2|_scale_inv|_zero_point|_packed|qweight|qzeros|g_idx|\.scales)$")


@dataclass(frozen=True)
class DraftNames:
    """The names of a drafter's tensors.

    Attributes:
        stored: The stored name of each name that the graph has.
        left_out: Stored tensors that no graph has a use for, each with the reason.
    """

    stored: Mapping[str, str]
    left_out: Mapping[str, str]

    def __call__(self, name: str) -> str:
        """The stored name of a name in the graph; the name itself if no such tensor is stored."""
        return self.stored.get(name, name)

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def having(self, part: str) -> list[str]:
        """The stored names of those graph names that have a part."""
        return [stored for name, stored in self.stored.items() if part in name]


def common_names(stored: Sequence[str]) -> dict[str, str]:
    """The graph's name of each stored tensor: without their common prefix, and with a producer's own words replaced.

    A producer's words are replaced only where its words are found: what another one would mean by them is no matter.
    """
    aliases = aliases_of(stored)
    return {name: _common_name(unprefixed(name), aliases) for name in stored}


def _common_name(name: str, aliases: Mapping[str, str]) -> str:
    if alias := next((alias for alias in aliases if name.startswith(alias)), None):
        name = aliases[alias] + name.removeprefix(alias)
    return _CODEBOOK.sub(r"\1", name)


def draft_names(checkpoint: Checkpoint) -> DraftNames:
    """Read the names of a drafter's tensors.

    Raises:
        ExportError: The tensors are a training run's raw state, are packed, or two of them mean the same.
    """
    names = list(checkpoint.tensors)
    _refuse(checkpoint.folder, [name for name in names if _RAW.search(name)], *_RAW_STATE)
    packed = [name for name in names if _PACKED.search(name) or checkpoint.tensors[name].dtype in _PACKED_TYPES]
    _refuse(checkpoint.folder, packed, *_PACKED_WEIGHTS)
    stored: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, meaning in common_names(names).items():
        if _FREQUENCIES.search(meaning):
            left_out[name] = "rotary frequencies, which the graph computes from the config"
        elif meaning not in stored:
            stored[meaning] = name
        elif same_bytes(checkpoint.tensors[stored[meaning]], checkpoint.tensors[name]):
            left_out[name] = f"a copy of {stored[meaning]}"
        else:
            raise ExportError(
                "Two tensors mean the same and differ.",
                where=checkpoint.folder,
                found=listed([stored[meaning], name]),
                accepted=f"{meaning} once, or twice the same",
                fix="Remove the one that the drafter was not trained with.",
            )
    return DraftNames(stored, left_out)


def tensor(checkpoint: Checkpoint, names: DraftNames, name: str) -> StoredTensor | None:
    """The stored tensor of a name in the graph."""
    return checkpoint.tensors.get(names(name))


_PACKED_TYPES = ("F8_E4M3", "F8_E5M2", "U8", "I8", "F4", "F8_E8M0")
_RAW_STATE = (
    "The drafter's folder holds the raw state of a training run.",
    "a checkpoint as the trainer's own export writes it",
    "Export the run to a Hugging Face checkpoint first, then point the option at that.",
)
_PACKED_WEIGHTS = (
    "The drafter's weights are packed.",
    "weights in bf16, fp16 or fp32",
    "Use the unquantized release of the drafter.",
)


def _refuse(folder: Path, names: Iterable[str], problem: str, accepted: str, fix: str) -> None:
    if names := list(names):
        raise ExportError(problem, where=folder, found=listed(names[:3]), accepted=accepted, fix=fix)
