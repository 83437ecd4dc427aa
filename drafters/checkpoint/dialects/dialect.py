"""The facts about one producer of drafters, as one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from drafters.checkpoint.kinds import Family
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key

# What trainers and loaders put before every name of a tensor.
PREFIXES = ("model.", "draft_model.")


class Tap(Enum):
    """What a number ``n`` in a list of the target's layers stands for."""

    OUTPUT = "the output of layer n"
    INPUT = "the input of layer n, which is the output of layer n - 1"

    @property
    def offset(self) -> int:
        """What to subtract from the number for the layer whose output is read."""
        return 1 if self is Tap.INPUT else 0


class Bound(Enum):
    """Which positions ``p`` a row at ``q`` sees with a window of ``W`` in training. Blocks begin with their anchor."""

    NONE = "there are no windows"
    ROW = "p > q - W, for each row"
    BLOCK = "p >= anchor - W, for all rows of a block alike"
    CONTEXT = "p > q - W of the context, and all rows of the block"


@dataclass(frozen=True)
class Windows:
    """How a producer's layers slide.

    Attributes:
        bound: What a window hides in training.
        slides: Which layers have one, in words.
        causal: Which layers see only the earlier rows of their block, in words.
        switch: A key that lets every layer slide, whatever ``layer_types`` says; None if there is no such key.
        size: The key that holds the window then.
    """

    bound: Bound
    slides: str = "as `layer_types` says"
    causal: str = "those that slide"
    switch: str | None = None
    size: str | None = None


@dataclass(frozen=True)
class AnchorRow:
    """Whether the first row of a block also predicts.

    Attributes:
        key: The key that says so; None if there is none.
        families: The kinds of drafters of which the key says it.
        absent: What holds where no key says it. None: it follows from the number of drafts that a run is asked for.
    """

    key: str | None = None
    families: tuple[Family, ...] = tuple(Family)
    absent: Mapping[Family, bool | None] = field(
        default_factory=lambda: {Family.DFLASH: False, Family.DFLASH2: False, Family.DSPARK: True}
    )


class Rope(Enum):
    """Where rotary keys are written."""

    PARAMETERS = "`rope_parameters`"
    FLAT = "`rope_theta` and `rope_scaling`"
    BOTH = "`rope_parameters`, mirrored in `rope_theta` and `rope_scaling`"


@dataclass(frozen=True)
class Layout:
    """How a producer writes ``config.json``.

    Attributes:
        section: The section that holds a drafter's own keys; None for the top level.
        own: The keys that it writes there, each where it means something for the kind of drafter.
        rope: Where it writes rotary keys.
        top: Own keys that it writes at the top level instead, or too where they stand in both lists.
        always: Further keys of the top level that always have one value.
        by_family: Own keys that always have one value in drafters of a kind.
        families: The kinds of drafters that it is known to write so; empty for all of which it has an architecture.
    """

    section: str | None
    own: tuple[str, ...]
    rope: Rope
    top: tuple[str, ...] = ()
    always: Mapping[str, Any] = field(default_factory=dict)
    by_family: Mapping[Family, Mapping[str, Any]] = field(default_factory=dict)
    families: tuple[Family, ...] = ()


def _no_defaults(_: Family) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Dialect:
    """One producer's way of writing a drafter, and of training it where that decides how it must be run.

    Attributes:
        name: The producer, in a word or two.
        title: The same as it calls itself, with the owner of its repository.
        sources: Where these facts were read.
        keeps: Where it keeps a drafter's own keys, in words.
        recognised: Tells from ``config.json`` whether this producer wrote it: the reason, or None.
        architectures: The names in ``architectures`` that it writes for each kind of drafter; the usual one first.
        prefixes: What it puts before names of tensors, and no other producer does.
        aliases: Beginnings of tensor names that no other producer has, with the common beginning that each stands for.
        marks: Names of tensors that tell the producer, whatever the configuration says.
        renames: Keys to which it gives another meaning than others do, with the common names of what they mean.
        keys: The keys that it alone writes.
        defaults: What its writer leaves out where it has the default value, by kind of drafter.
        taps: The keys that list the target's layers, each with what its numbers stand for.
        capture: How it captures the target's layers in training, in words.
        normed_last_tap: Whether it captures the last layer's output after the final norm.
        anchor: Whether the anchor's row predicts.
        asked_drafts: Finds how many drafts a run is asked for, and the key's place.
        windows: How layers slide.
        kind_key: The key in which it writes the kind of drafter; None if it writes none.
        confidence_key: The key that says whether there is a confidence head.
        bare: The kind of a drafter of its architectures that has nothing beside the backbone.
        block_size: Where the block's size stands, in words.
        rotary: Where rotary keys stand, and which scaling there is, in words.
        vocabulary: Which vocabulary the drafter predicts, in words.
        theta_in_doubt: What to say of a rotary base that its exporter may have got wrong, by kind of drafter.
        unsaid_window: What to say where no layer slides, since its exporter may have left the window out.
        layout: How to write a configuration as it does; None if the form is not known well enough.
    """

    name: str
    title: str
    keeps: str
    recognised: Callable[[JsonObject], str | None]
    sources: tuple[str, ...] = ()
    architectures: Mapping[Family, tuple[str, ...]] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    defaults: Callable[[Family], Mapping[str, Any]] = _no_defaults
    taps: Mapping[str, Tap] = field(default_factory=lambda: {"target_layer_ids": Tap.OUTPUT})
    capture: str = "not known"
    normed_last_tap: bool = False
    anchor: AnchorRow = field(default_factory=AnchorRow)
    asked_drafts: Callable[[JsonObject], tuple[str, int] | None] | None = None
    windows: Windows = field(default_factory=lambda: Windows(Bound.ROW))
    kind_key: str | None = None
    confidence_key: str = "enable_confidence_head"
    bare: Family = Family.DFLASH
    block_size: str = "the top level"
    rotary: str = "`rope_parameters`"
    vocabulary: str = "the target's"
    theta_in_doubt: Mapping[Family, str] = field(default_factory=dict)
    unsaid_window: str | None = None
    layout: Layout | None = None


def words(names: str) -> tuple[str, ...]:
    """Names that are separated by spaces."""
    return tuple(names.split())


def architecture(config: JsonObject) -> str:
    """The first architecture that a configuration names; empty if it names none."""
    names = config.strings("architectures", default=())
    return str(names[0]) if names else ""


def by_architecture(*names: str) -> Callable[[JsonObject], str | None]:
    """Recognises a producer by the names that only it writes in ``architectures``."""

    def recognised(config: JsonObject) -> str | None:
        found = architecture(config)
        return f"the architecture {found}" if found in names else None

    return recognised


def any_key(config: JsonObject, *names: str) -> str | None:
    """The place of the first of some keys, at the top level or in a section of the drafter's own."""
    sections = [JsonObject(data, config.place(name)) for name, data in config.data.items() if isinstance(data, dict)]
    places = [section.place(name) for section in (*sections, config) for name in names if name in section]
    return places[0].split(": ", 1)[-1] if places else None
