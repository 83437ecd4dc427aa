"""Every kind of packed export there is, as small ones: what decides which operators, types and kernels a GPU runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from drafters.checkpoint.mask_row import MASK_FILE
from tests.checkpoints import TINY, Json, text_only, text_only_names, tie, variant, without_head, yarn
from tests.cuda.shapes import RELEASES, Heads, write_target, write_wide_drafter
from tests.dialects import PAIRS, options_of, with_sinks, write_as
from tests.drafters import Change, drafter, own, sliding, top
from tests.drafters import yarn as stretched
from tests.runtime import export
from tests.test_draft_beyond import CASES, Part, folder_of

Maker = Callable[[Path], Path]  # writes a checkpoint to the folder given
PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True)
class Variant:
    """An export to be made.

    Attributes:
        name: What is special about it.
        precision: bf16 or fp16.
        options: Extra options.
        target: Writes the target's checkpoint; None is the bundled one.
        drafter: Writes the drafter's checkpoint, if there is one.
    """

    name: str
    precision: str = "bf16"
    options: tuple[str, ...] = ()
    target: Maker | None = None
    drafter: Maker | None = None

    def __str__(self) -> str:
        return f"{self.name}, {self.precision}"

    @property
    def drafts(self) -> bool:
        """Whether the Engine can draft with it."""
        return self.drafter is not None

    def export(self, work: Path) -> Path:
        """Make the checkpoints and the export; the export's folder."""
        options = ["use_paged_attention=true", *self.options]
        if self.drafter:
            options.append(f"drafter_path={self.drafter(work / 'drafter')}")
        target = self.target(work / "target") if self.target else TINY
        return export(target, work / "out", *options, precision=self.precision, provider="cuda")


ALL_TAPS = "aux_hidden_state_layers=1,2,3,4,5,6,7,8"
TARGET_OPTIONS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "all logits": ("prune_lm_head=false",),
    "hidden states": ("include_hidden_states=true",),
    "taps": ("aux_hidden_state_layers=2,4,6",),
    "captures": ("state_update_capacity=7",),
    "one capture": ("state_update_capacity=1",),
    "eight captures": ("state_update_capacity=8",),
    "captures, all logits": ("state_update_capacity=7", "prune_lm_head=false"),
    "all at once": (ALL_TAPS, "state_update_capacity=7", "include_hidden_states=true", "prune_lm_head=false"),
    "large pages": ("paged_block_size=512",),
    "few pages": ("num_blocks=64", "max_batch_size=4", "paged_chunk_size=128"),
}


def targets() -> Iterator[Variant]:
    """Targets alone."""
    for (name, options), precision in product(TARGET_OPTIONS.items(), PRECISIONS):
        yield Variant(f"target, {name}", precision, options)
    tied = Variant("target, tied", target=lambda folder: variant(folder, config=tie, tensors=without_head))
    text = Variant("target, text only", target=lambda at: variant(at, config=text_only, tensors=text_only_names))
    yield from (tied, text, Variant("target, YaRN", target=lambda folder: variant(folder, config=long)))


def long(config: Json) -> None:
    """YaRN to a context that the prompts here fit into."""
    yarn(config)
    text = config["text_config"]
    text["rope_parameters"]["original_max_position_embeddings"] = text["max_position_embeddings"] = 1024


def dialects() -> Iterator[Variant]:
    """Drafters in every producer's words."""
    for producer, kind in PAIRS:

        def write(folder: Path, producer: str = producer, kind: str = kind) -> Path:
            return write_as(producer, kind, folder)

        yield Variant(f"{kind} of {producer}", options=options_of(producer), drafter=write)


# Drafters whose graph differs from the plain one's, and options of theirs; tests/test_draft_beyond.py has more of them.
CHANGED: dict[str, tuple[str, tuple[Change, ...], tuple[str, ...]]] = {
    "windowed DFlash 2": ("dflash2", (sliding(40),), ()),
    "DFlash 2, one layer windowed": ("dflash2", (sliding(40, "sliding_attention", "full_attention", causal=None),), ()),
    "causal DFlash 2": ("dflash2", (top(is_causal=True),), ()),
    "DFlash 2, a short block": ("dflash2", (), ("dflash2_num_draft_tokens=3",)),
    "DFlash 2, a block of 16": ("dflash2", (own(block_size=16),), ()),
    "DFlash 2, three taps in a convolution": ("dflash2", (own(conv_kernel_size=3),), ()),
    "DFlash 2, YaRN": ("dflash2", (stretched,), ()),
    "DFlash 2, large pages": ("dflash2", (), ("paged_block_size=512",)),
    "DFlash 2, no prefixes": ("dflash2", (), ("prefix_caching=false",)),
    "DFlash 2, four drafts": ("dflash2", (), ("max_draft_tokens=4", "state_update_capacity=8")),
    "windowed DSpark": ("dspark", (sliding(64),), ()),
    "causal DSpark": ("dspark", (sliding(64, causal=True),), ()),
    "DSpark, gated": ("dspark", (own(markov_head_type="gated"),), ("dspark_num_draft_tokens=5", "dspark_top_k=8")),
}


def drafters() -> Iterator[Variant]:
    """Drafters that differ in more than their words, beside a bf16 target; some beside an fp16 one."""
    for name, (kind, changes, options) in CHANGED.items():
        yield Variant(name, options=options, drafter=_changed(kind, changes))
    for name, (kind, parts) in CASES.items():
        yield Variant(name, drafter=_beyond(kind, parts))
    for kind in ("dflash", "dflash2", "dspark", "gated"):
        yield Variant(f"{kind} beside float16", "fp16", drafter=_beyond(kind, ()))
        yield Variant(f"{kind} with sinks beside float16", "fp16", drafter=_beyond(kind, (with_sinks,)))
    yield Variant("DFlash 2, a row of its own for the mask, the last layer's tap", drafter=_with_mask_row)


def _with_mask_row(folder: Path) -> Path:
    made = drafter(folder, "dflash2", own(target_layer_ids=[1, 3, 7]))
    torch.save(torch.ones(128), made / MASK_FILE)
    return made


def _changed(kind: str, changes: tuple[Change, ...]) -> Maker:
    return lambda folder: drafter(folder, kind, *changes)


def _beyond(kind: str, parts: tuple[Part, ...]) -> Maker:
    return lambda folder: folder_of(folder, kind, *parts)


def shapes() -> Iterator[Variant]:
    """The releases' heads: targets alone, and with drafters as wide as those that were published."""
    for heads, precision in product(RELEASES, PRECISIONS):
        yield Variant(f"{heads}", precision, ("state_update_capacity=7",), _target(heads))
        yield Variant(f"{heads}, all logits", precision, ("prune_lm_head=false",), _target(heads))
    for heads, kind in product(RELEASES, ("dflash", "dflash2", "dspark")):
        yield Variant(f"{heads}, {kind}", target=_target(heads), drafter=_wide(kind), options=FEW)
    largest = RELEASES[-1]
    for kind, window, causal in product(("dflash", "dflash2", "dspark"), (1024, 2048, 4096), (False, True)):
        name = f"{largest}, {kind} of window {window}{', causal' * causal}"
        yield Variant(name, target=_target(largest), drafter=_wide(kind, sliding(window, causal=causal)), options=FEW)
    for kind in ("dflash", "dflash2", "dspark"):
        changes = (sliding(2048),)
        yield Variant(
            f"{largest}, {kind} with sinks",
            target=_target(largest),
            drafter=_wide(kind, *changes, parts=(with_sinks,)),
            options=FEW,
        )
        yield Variant(f"{largest}, {kind}", "fp16", target=_target(largest), drafter=_wide(kind, *changes), options=FEW)


def _target(heads: Heads) -> Maker:
    return lambda folder: write_target(folder, heads)


def _wide(kind: str, *changes: Change, parts: tuple[Part, ...] = ()) -> Maker:
    return lambda folder: write_wide_drafter(folder, kind, changes, parts)


# Caches of full attention are as long as the context; a few requests of it fit the stand-in's memory.
FEW = ("max_batch_size=4",)
VARIANTS = [*targets(), *dialects(), *drafters(), *shapes()]
