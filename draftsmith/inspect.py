"""What a checkpoint is, who made it, and what becomes of each of its keys: ``draftsmith inspect FOLDER``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from builder.drafter import Drafter
from builder.drafter_graph import plan_drafter
from builder.families import FAMILIES, family_of, open_target
from builder.family import TargetFamily, TargetOptions
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.dialects import KEYS as DRAFTER_KEYS
from drafters.checkpoint.dialects import unprefixed
from drafters.checkpoint.dialects.dialect import architecture
from drafters.checkpoint.identity import Identity, identity
from drafters.checkpoint.keys import SECTIONS
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.mask_row import MaskRow
from drafters.checkpoint.reading import read_identified
from drafters.graph.graph_io import DrafterOptions
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Table, Use, one_of, short
from onnxkit.layers.graph import BF16
from onnxkit.layers.precision import Precision
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.tensor_plan import TensorPlan

# Stands in for the block size of a drafter whose config does not give it: only an export must know it.
_ANY_BLOCK = 2
# Parts of names that language models have; first parts of names that only drafters have, which read another model's
# streams.
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embeddings")
_FUSING = (
    "fc",
    "hidden_norm",
    "eh_proj",
    "midlayer",
    "markov_head",
    "candidate_selector",
    "dflash_module",
    "context_proj",
    "encoder",
)
_SHOWN = 200  # keys of one kind: more than any config has


def inspect(folder: Path, block_size: int | None = None) -> Iterator[str]:
    """The lines of a description.

    Raises:
        ExportError: The folder cannot be read, or an export would refuse its contents.
    """
    checkpoint = Checkpoint(folder, "FOLDER")
    yield f"{folder}: {len(checkpoint.tensors)} tensors, {_types(checkpoint)}"
    if family := family_of(checkpoint.config):
        yield from _target(checkpoint, family)
    elif _is_language_model(checkpoint):
        named = architecture(checkpoint.config) or "no architecture is named"
        yield f"It is     a language model that is not exported, by its tensors and config.json: {named}"
        open_target(checkpoint)  # raises an error that says what is not supported
    else:
        yield from _drafter(checkpoint, block_size)
    checkpoint.check_unchanged()


def _is_language_model(checkpoint: Checkpoint) -> bool:
    """Whether it is a target rather than a drafter: it has an embedding, and nothing fuses another's streams."""
    embeds = any(part in _EMBEDDINGS for name in checkpoint.tensors for part in name.split("."))
    return embeds and not any(unprefixed(name).split(".")[0] in _FUSING for name in checkpoint.tensors)


def _target(checkpoint: Checkpoint, family: TargetFamily) -> Iterator[str]:
    config = checkpoint.config
    yield f"It is     a {family.title} target, by architectures: {architecture(config)}"
    sections = family.sections(config)
    yield from _keys(family.keys, sections)
    target = family.open(checkpoint)
    yield "Config"
    origins = {key: section.place(key) for section in sections for key in section.data if key in section}
    yield from _fields(target.config, family.keys, origins)
    yield f"  {'text model':<24} {target.stored_as}"
    yield from _notes(target.notes)
    model = target.build(TargetOptions(1, True, False, target.tied, Precision.dense(BF16), page_size=16), True)
    yield from _tensors(checkpoint, plan_tensors(model.graph, checkpoint, target.stored_name, target.left_out))


def _drafter(checkpoint: Checkpoint, block_size: int | None) -> Iterator[str]:
    found = identity(checkpoint)
    yield f"It is     a {found.family.label} drafter, by {found.family_reason}"
    yield f"Made by   {found.dialect.title}, by {found.dialect_reason}"
    yield from _keys(DRAFTER_KEYS, found.sections.parts, found)
    unsaid = block_size is None and "block_size" not in found.sections
    config = read_identified(checkpoint, found, block_size=_ANY_BLOCK if unsaid else block_size)
    yield "Config"
    yield from _fields(config, DRAFTER_KEYS, found.sections.origins, skipped=("block_size",) if unsaid else ())
    yield from _meaning(config, unsaid=unsaid)
    renamed = {name: stored for name, stored in found.names.stored.items() if name != stored}
    if renamed:
        name, stored = next(iter(renamed.items()))
        yield f"Names     {len(renamed)} tensors are stored under other names, such as {stored} for {name}"
    yield from _notes(config.notes[1:])
    graph_options = DrafterOptions(Precision.dense(BF16), 1, 16, FAMILIES[0].embedding, FAMILIES[0].head)
    _, plan = plan_drafter(Drafter(checkpoint, config, config.block_size, found.left_out), graph_options)
    yield from _tensors(checkpoint, plan)


def _tensors(checkpoint: Checkpoint, plan: TensorPlan) -> Iterator[str]:
    """What becomes of each stored tensor in an export in bf16."""
    yield from _notes(tuple(plan.index_notes()))
    yield f"Tensors   all {len(checkpoint.tensors)} are read or left out on purpose"
    taken = Counter(made.fate for made in plan.initializers.values() for _ in made.sources)
    for fate, count in taken.items():
        yield f"  {count:>5} {fate}"
    for reason, count in Counter(plan.left_out.values()).items():
        yield f"  {count:>5} left out: {reason}"


def _meaning(config: DrafterConfig, *, unsaid: bool) -> Iterator[str]:
    """What follows from a drafter's configuration; ``unsaid`` if nothing says how long a block is."""
    taps = ", ".join(map(str, config.taps))
    yield f"Taps      {taps}: the streams that enter these layers of the target"
    rows = "each row predicts, the anchor's too" if config.anchor_predicts else "the anchor's row predicts nothing"
    if unsaid:
        yield f"Drafts    not known, {rows}: an export needs drafter_block_size=N, the N of its trainer's command"
    else:
        yield f"Drafts    {config.num_draft_tokens} of a block of {config.block_size}: {rows}"
    known = (
        ""
        if config.kind.value == config.family.value
        else f", which has no kind for {config.family.label} of this form"
    )
    yield f"Runs as   {config.kind}.onnx in the runtime{known}"


def _fields(config: Any, keys: Table, origins: Mapping[str, str], skipped: Sequence[str] = ()) -> Iterator[str]:
    """Each field of a normalised configuration with the places that it came from."""
    for field in fields(config):
        if field.name in ("notes", *skipped):
            continue
        places = [
            _short_place(origins[key.name]) for key in keys.values() if field.name in key.fields and key.name in origins
        ]
        if field.name == "rotary":
            places = [place for place in places if "max_position" not in place]
        origin = f"from {', '.join(places)}" if places else "(by the tensors, or what holds where nothing is said)"
        value = getattr(config, field.name)
        if is_dataclass(value) and not isinstance(value, MaskRow):
            yield f"  {field.name:<53} {origin}"
            yield from (f"    {name:<22} {part}" for name, part in _parts(value))
        else:
            yield f"  {field.name:<24} {_value(value):<28} {origin}"


def _parts(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The parts of a nested value, by their names."""
    for field in fields(value):
        part = getattr(value, field.name)
        if is_dataclass(part):
            yield from _parts(part, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", _value(part)


def _value(value: object) -> str:
    """A value in words; for a list with many equal parts, how many there are of each."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        counts = {part: value.count(part) for part in value}
        if (len(value) > 8 and len(counts) < len(value)) or (value and is_dataclass(value[0])):
            return "; ".join(f"{count} x {_value(part)}" for part, count in counts.items())
        return ", ".join(map(_value, value)) or "none"
    if is_dataclass(value) and not isinstance(value, MaskRow):
        return ", ".join(f"{name} {part}" for name, part in _parts(value))
    return str(value)


def _keys(keys: Table, sections: list[JsonObject], found: Identity | None = None) -> Iterator[str]:
    """Each key of a configuration, grouped by what becomes of it."""
    groups: dict[str, list[str]] = {title: [] for title in (*(use.value for use in Use), "not known")}
    renames = found.dialect.renames if found else {}
    for section in sections:
        for name, value in section.data.items():
            if value is None or name in SECTIONS:
                continue
            key = keys.get(renames.get(name, name))
            where = _short_place(section.place(name))
            if key is None:
                groups["not known"] += _lines(where, value)
            else:
                use = _use(key, value, found)
                groups[use] += [where] if use == Use.NO_EFFECT.value else _lines(where, value, f"  ({key.says})")
    for title, lines in groups.items():
        if title == Use.NO_EFFECT.value:
            yield f"{title.capitalize()}: {', '.join(lines) or 'none'}"
            continue
        if lines:
            yield f"{title.capitalize()}:"
            yield from (f"  {line}" for line in lines[:_SHOWN])
        if len(lines) > _SHOWN:
            yield f"  ... and {len(lines) - _SHOWN} more"


def _use(key: Key, value: object, found: Identity | None) -> str:
    """What becomes of a key with this value, in this checkpoint."""
    if key.use is Use.REFUSED and one_of(value, key.accepted):
        return Use.CHECKED.value
    if found and key.families and found.family not in key.families:
        return (Use.CHECKED if one_of(value, key.accepted) else Use.REFUSED).value
    if found and found.family == Family.DSPARK and key.name in ("output_multiplier", "final_logit_softcapping"):
        return Use.NO_EFFECT.value
    return key.use.value


def _lines(where: str, value: object, says: str = "") -> list[str]:
    """A key with its value as written; if that is an object, its members on the lines below."""
    if not isinstance(value, dict) or not value:
        return [f"{where} = {short(value)}{says}"]
    nested = [line for name, part in value.items() for line in _lines(name, part)]
    return [f"{where}:{says}", *(f"  {line}" for line in nested)]


def _notes(notes: tuple[str, ...]) -> Iterator[str]:
    yield from (f"Note: {note}" for note in notes)


def _short_place(place: str) -> str:
    """A place without the file's name, cut if a key is longer than any config's."""
    shown = place.split("config.json: ", 1)[-1]
    return shown if len(shown) <= 300 else f"{shown[:300]}..."


def _types(checkpoint: Checkpoint) -> str:
    counts: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
    size = sum(tensor.length for tensor in checkpoint.tensors.values())
    return f"{', '.join(f'{count} {name}' for name, count in counts.items())}, {size / 1e6:.1f} MB"
