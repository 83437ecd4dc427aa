"""What a checkpoint is, who made it, and what becomes of each of its keys: ``draftsmith inspect FOLDER``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from builder.drafter import Drafter
from builder.drafter_graph import plan_drafter
from builder.families import FAMILIES, family_of
from builder.family import TargetFamily, TargetOptions
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.dialects import KEYS as DRAFTER_KEYS
from drafters.checkpoint.dialects.dialect import architecture
from drafters.checkpoint.identity import Identity, identity
from drafters.checkpoint.keys import SECTIONS
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.reading import read_identified
from drafters.graph.graph_io import DrafterOptions
from onnxkit.json_object import JsonObject
from onnxkit.key_table import Key, Table, Use, one_of, short
from onnxkit.layers.graph import BF16
from onnxkit.layers.precision import Precision
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.planning import plan_tensors
from onnxkit.weights.tensor_plan import TensorPlan

# Stands for the block of a drafter whose config does not say it: only an export must know.
_ANY_BLOCK = 2
_SHOWN = 200  # keys of one kind: more than any config has


def inspect(folder: Path, block_size: int | None = None) -> Iterator[str]:
    """The lines of a description.

    Raises:
        ExportError: The folder cannot be read, or an export would refuse what it holds.
    """
    checkpoint = Checkpoint(folder, "FOLDER")
    yield f"{folder}: {len(checkpoint.tensors)} tensors, {_types(checkpoint)}"
    if family := family_of(checkpoint.config):
        yield from _target(checkpoint, family)
    else:
        yield from _drafter(checkpoint, block_size)
    checkpoint.check_unchanged()


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
    yield f"Made by   {found.dialect.name}, by {found.dialect_reason}"
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
    """What follows from a drafter's configuration; ``unsaid`` where nothing says how long a block is."""
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
        value = _value(getattr(config, field.name))
        origin = f"from {', '.join(places)}" if places else "(by the tensors, or what holds where nothing is said)"
        yield f"  {field.name:<24} {value:<28} {origin}"


def _value(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 8 and len(set(value)) < len(value):
        counts = {part: value.count(part) for part in value}
        return ", ".join(f"{count} x {part}" for part, count in counts.items())
    return str(value)


def _keys(keys: Table, sections: list[JsonObject], found: Identity | None = None) -> Iterator[str]:
    """Each key of a configuration under what becomes of it."""
    groups: dict[str, list[str]] = {title: [] for title in (*(use.value for use in Use), "not known")}
    renames = found.dialect.renames if found else {}
    for section in sections:
        for name, value in section.data.items():
            if value is None or name in SECTIONS:
                continue
            key = keys.get(renames.get(name, name))
            where = _short_place(section.place(name))
            if key is None:
                groups["not known"].append(f"{where} = {short(value)}")
            else:
                groups[_use(key, value, found)].append(_line(key, where, value))
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


def _line(key: Key, where: str, value: object) -> str:
    if key.use is Use.NO_EFFECT:
        return where
    shown = "{...}" if isinstance(value, dict) else short(value)
    return f"{where} = {shown if len(shown) < 60 else shown[:57] + '...'}  ({key.says})"


def _notes(notes: tuple[str, ...]) -> Iterator[str]:
    yield from (f"Note: {note}" for note in notes)


def _short_place(place: str) -> str:
    """A place without the file's name, cut where a key is longer than any config's."""
    shown = place.split("config.json: ", 1)[-1]
    return shown if len(shown) <= 300 else f"{shown[:300]}..."


def _types(checkpoint: Checkpoint) -> str:
    counts: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
    size = sum(tensor.length for tensor in checkpoint.tensors.values())
    return f"{', '.join(f'{count} {name}' for name, count in counts.items())}, {size / 1e6:.1f} MB"
