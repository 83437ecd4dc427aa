"""Any change of a drafter's config or tensors leads to a build that differs as the key demands, or to a refusal.

The tables of keys say what each key does; hypothesis looks for a change that does something else. Seeds are fixed, so
that a run in CI is the same every time.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.dialects import DIALECTS
from drafters.checkpoint.dialects import KEYS as DRAFTER_KEYS
from drafters.checkpoint.keys import SHAPING_SECTIONS
from drafters.checkpoint.names import common_names
from onnxkit.key_table import Key, Use, one_of, same
from tests.changes import (
    ROPE,
    at,
    change_tensor,
    changed_alone,
    claim,
    claiming,
    differing,
    key_of,
    many,
    names_it,
    other,
    paths,
)
from tests.dialects import PAIRS, WRITERS, with_biases, with_sinks, with_tables, written
from tests.planned import (
    Headers,
    Json,
    Outcome,
    headers_of,
    plan_drafter,
)
from tests.test_draft_beyond import capped, mixed, swa, without_anchor

Base = tuple[str, Json, Headers, int | None]


@cache
def common_name(name: str) -> str:
    """The graph's name of one stored tensor."""
    return common_names([name])[name]


def bases() -> list[Base]:
    """Drafters of all producers and kinds, and some in which more keys are at work."""
    found: list[Base] = []
    for number, (producer, kind) in enumerate(PAIRS):
        config, tensors = written(producer, kind, yarn=bool(number % 2))
        block = 8 if producer == "TorchSpec" else None
        found.append((f"{producer}, {kind}", config, headers_of(tensors), block))
    for name, kind, parts in (
        ("window", "dflash2", [mixed, capped, with_biases]),
        ("swa", "dspark", [swa, with_sinks, with_tables]),
        ("anchor", "gated", [without_anchor, mixed]),
    ):
        config, tensors = written("z-lab, generation 2" if kind == "dflash2" else "SpecForge", kind)
        config |= {"is_causal": True} if name == "swa" else {}
        for part in parts:
            part(config, tensors)
        found.append((name, config, headers_of(tensors), None))
    return found


def idle(key: str, config: DrafterConfig, data: Json) -> bool:
    """Whether a key that is honoured has nothing to say in this drafter."""
    flat: Json = {}
    for section in (*(data.get(name) or {} for name in SHAPING_SECTIONS), data):
        if isinstance(section, dict):
            flat |= {name: value for name, value in section.items() if value is not None}
    slides = any(layer.window for layer in config.layers)
    return {
        "sliding_window": not slides or bool(flat.get("use_swa")),
        "swa_window_size": not flat.get("use_swa"),
        "max_window_layers": "layer_types" in flat or not flat.get("use_sliding_window"),
        "use_sliding_window": "layer_types" in flat,
        "sliding_window_non_causal": not slides or "is_causal" in flat,
        "output_multiplier": config.family == "dspark",
        "final_logit_softcapping": config.family == "dspark",
        "shift_label": config.family != "dspark",
        "causal": "is_causal" in flat,
        "is_causal": "causal" in flat,
        "confidence_head_with_markov": True,
    }.get(key, False)


# Keys that say the same; a producer may write several.
SAME = (
    {"rope_parameters", "rope_scaling", "rope_theta", "rope_type", "type"},
    {"target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"},
    {"is_causal", "causal"},
)


def said_elsewhere(config: Json, path: tuple[str, ...]) -> bool:
    """Whether another place of the config says what this one does."""
    group = next((names for names in SAME if path[-1] in names), {path[-1]})
    others = [other for other in paths(config) if other[-1] in group and other[: len(path)] != path]
    return any(at(config, other)[other[-1]] is not None for other in others if path[: len(other)] != other)


def renames_of(name: str) -> dict[str, str]:
    producer = WRITERS[name.split(", ")[0]][1] if name.split(", ")[0] in WRITERS else ""
    return dict(next((d.renames for d in DIALECTS if d.name == producer), {}))


def check(key: Key, op: str, before: Any, after: Any, base: Outcome, made: Outcome, quiet: bool) -> None:
    """The rule of the table, for one change of one key."""
    changed = differing(base.config, made.config)
    said = {"op": op, "key": key.name, "before": before, "after": after, "changed": changed}
    if key.use is Use.REFUSED:
        claim(after is None or one_of(after, key.accepted), said)
    if key.use is not Use.HONOURED or op == "same":
        claim(not changed, said)
        return
    claim(changed <= {*key.fields, "head_dim"} or not key.fields, said)
    if changed or quiet or same(before, after):
        return
    if op in ("drop", "null"):
        claim(one_of(before, key.absent) or _written_default(key, base, made), said)
    else:
        claim(one_of(after, key.absent) and (before is None or one_of(before, key.absent)), said)


def _written_default(key: Key, base: Outcome, made: Outcome) -> bool:
    """Whether the value was the one that its producer's writer leaves out, or that follows from another key."""
    told = any("vLLM speculators" in note for note in made.notes)
    return told or key.name in ("head_dim", "attention_bias", "layer_types", *SHAPING_SECTIONS)


def chosen(data: st.DataObject) -> Base:
    names = [base[0] for base in bases()]
    return bases()[names.index(data.draw(st.sampled_from(names), label="base"))]


OPS = ("drop", "null", "retype", "other", "unknown")


def is_rotary(path: tuple[str, ...]) -> bool:
    """Whether a key is one of the rotary embedding's section."""
    return len(path) > 1 and path[0] != "dflash_config" and path[-2] in (*ROPE, "full_attention", "sliding_attention")


def free_homes(config: Json, path: tuple[str, ...]) -> list[str]:
    """Sections that a key could stand in as well, "" being the top level."""
    if is_rotary(path) or isinstance(at(config, path)[path[-1]], dict):
        return []
    own = path[0] if len(path) > 1 else ""
    found = []
    for home in (*SHAPING_SECTIONS, ""):
        section = config.get(home, {}) if home else config
        if home != own and isinstance(section, dict) and section.get(path[-1]) is None:
            found.append(home)
    return found


@many(1200)
@given(st.data())
@claiming
def test_any_change_of_a_drafters_config(data: st.DataObject) -> None:
    name, config, headers, block = chosen(data)
    base = plan_drafter(config, headers, block)
    assert not base.error, base.error
    # How the drafter is run stands in speculators_config; its one key is of test_conventions.
    found = [path for path in paths(config) if path[0] != "speculators_config"]
    path = data.draw(st.sampled_from(found), label="path")
    before, homes = at(config, path)[path[-1]], free_homes(config, path)
    elsewhere = ["same", "move", *(["twice"] if before is not None else [])] if homes else []
    op = data.draw(st.sampled_from([*OPS, *elsewhere]), label="op")
    changed = copy.deepcopy(config)
    section, key_name = at(changed, path), path[-1]
    if op in elsewhere:
        home = data.draw(st.sampled_from(homes), label="home")
        place = changed.setdefault(home, {}) if home else changed
        place[key_name] = other(data, key_name, before) if op == "twice" else before
        if op == "move":
            del section[key_name]
    else:
        changed_alone(data, op, section, key_name)
    made = plan_drafter(changed, headers, block)
    key = key_of(path, DRAFTER_KEYS, renames_of(name))
    if op == "unknown":
        claim_noted(path, base, made)
    elif op == "twice":
        claim_contradiction(path, key, base, made)
    elif made.error:
        claim_named(path, op, key, made)
    else:
        after = None if op in ("drop", "null") else before if op == "move" else section.get(key_name)
        assert key is not None, path
        claim_rule(path, op, key, (before, after), (base, made), config)


def claim_noted(path: tuple[str, ...], base: Outcome, made: Outcome) -> None:
    """An unknown key is refused in a section of the drafter's own, and a note at the top level."""
    name = path[-1] + "_x"
    if len(path) > 1:
        claim(made.error and name in made.error, path)
    else:
        claim(any(name in note for note in made.notes) and made.config == base.config, path)


def claim_contradiction(path: tuple[str, ...], key: Key | None, base: Outcome, made: Outcome) -> None:
    """A key that stands twice with different values is refused by name, unless it has no effect."""
    # Where a home is new, it may make another producer of it, whose keys then stand in other words.
    if made.error:
        claim(names_it(made.error, path[-1], ALIASES.get(path[-1], ())), path, made.error)
    else:
        claim(key is not None and key.use is Use.NO_EFFECT and made.config == base.config, path)


def claim_named(path: tuple[str, ...], op: str, key: Key | None, made: Outcome) -> None:
    """A refusal names the key, which is one that has an effect."""
    claim(names_it(made.error, path[-1], ALIASES.get(path[-1], ())), path, op, made.error)
    claim(key is None or key.use is not Use.NO_EFFECT or op == "retype", path, op, made.error)


def claim_rule(
    path: tuple[str, ...],
    op: str,
    key: Key,
    values: tuple[Any, Any],
    outcomes: tuple[Outcome, Outcome],
    config: Json,
) -> None:
    """What is taken differs as the table says."""
    before, after = values
    rope = is_rotary(path)
    if op == "retype" and key.use is Use.HONOURED and before is not None:
        number = isinstance(before, int | float) and isinstance(after, int | float) and not isinstance(after, bool)
        claim(not isinstance(before, dict) and (number or rope), path, before, after, "another type was taken")
    base, made = outcomes
    assert made.config is not None
    quiet = idle(key.name, base.config, config) or rope or said_elsewhere(config, path)
    check(key, "same" if op == "move" else op, before, after, base, made, quiet)


# Where another name says it: keys that mean the same, and those that a section holds.
ALIASES: dict[str, tuple[str, ...]] = {
    "layer_types": ("max_window_layers",),
    "target_layer_ids": ("aux_hidden_state_layer_ids",),
    "aux_hidden_state_layer_ids": ("target_layer_ids",),
    "use_swa": ("swa_window_size",),
    "projector_type": ("markov_rank",),
    "sample_from_anchor": ("shift_label", "speculative_tokens"),
    "speculators_config": ("sample_from_anchor",),
    "speculators_model_type": ("block_size", "sample_from_anchor", "hidden_act", "rms_norm_eps", "mask_token_id"),
    "dflash_config": ("block_size", "mask_token_id", "target_layer_ids", "markov_rank", "selector", "conv_"),
    "dspark_config": ("markov_rank", "mask_token_id", "target_layer_ids"),
    "transformer_layer_config": (
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "layer_types",
        "rope_theta",
        "mask",
    ),
    "rope_parameters": ("rope_theta", "full_attention", "max_position_embeddings"),
    "rope_type": ("factor",),
    "type": ("factor",),
    "num_target_layers": ("num_taps",),
    "target_num_hidden_layers": ("num_target_layers",),
    "markov_rank": ("architectures",),
}


# --- tensors ---


@many(500)
@given(st.data())
@claiming
def test_any_change_of_a_drafters_tensors(data: st.DataObject) -> None:
    _, config, headers, block = chosen(data)
    base = plan_drafter(config, headers, block)
    changed, name, op = change_tensor(data, headers)
    made = plan_drafter(config, changed, block)
    own = common_name(name) in ("embed_tokens.weight", "lm_head.weight")
    if made.error:
        concerned = {name, common_name(name), *(changed.keys() - headers.keys())}
        concerned.add(common_name(name).removesuffix(".weight").removesuffix(".bias"))
        claim(any(n in made.error for n in concerned), made.error)
        claim(not (op == "prefix" and name[0] != "x"), made.error)
        claim(not (op == "dtype" and changed[name].dtype in ("F32", "F16", "F64")), made.error)
    elif op == "dtype":
        claim(changed[name].dtype in ("F32", "F16", "F64"), name)
        claim(made.config == base.config, name)
    elif op == "drop":
        claim(own and made.config != base.config, name)  # the target's table in its place
    else:
        claim(op in ("prefix", "layer") and made.config == base.config, op, name)
