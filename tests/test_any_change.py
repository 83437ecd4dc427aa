"""Any change of a config or of tensors leads to a build that differs as the key demands, or to a refusal that names it.

The tables of keys say what each key does; hypothesis looks for a change that does something else. Seeds are fixed, so
that a run in CI is the same every time.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.qwen35.keys import KEYS as TARGET_KEYS
from drafters.checkpoint.config import DFlash2, DrafterConfig, LayerAttention
from drafters.checkpoint.dialects import DIALECTS
from drafters.checkpoint.dialects import KEYS as DRAFTER_KEYS
from drafters.checkpoint.keys import SHAPING_SECTIONS
from drafters.checkpoint.mask_row import MaskRow
from drafters.checkpoint.names import common_names
from onnxkit.key_table import Key, Table, Use, one_of, same
from tests.checkpoints import TINY
from tests.dialects import PAIRS, WRITERS, with_biases, with_sinks, with_tables, written
from tests.planned import (
    Headers,
    Json,
    Outcome,
    graph_text,
    header,
    headers_of,
    plan_drafter,
    plan_target,
)
from tests.test_draft_beyond import capped, mixed, swa, without_anchor
from tests.test_target_keys import CONFIG as TARGET

ROPE = ("rope_parameters", "rope_scaling")
ROPE_KEYS = {
    name: Key(name, Use.HONOURED, "the rotary tables", ("rotary", "max_position_embeddings"), absent=absent)
    for name, absent in {
        "rope_type": ("default",),
        "type": ("default", "yarn"),
        "rope_theta": (),
        "factor": (),
        "original_max_position_embeddings": (),
        "full_attention": (),
        "sliding_attention": (),
    }.items()
}
SETTINGS = settings(derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def common_name(name: str) -> str:
    """The graph's name of one stored tensor."""
    return common_names([name])[name]


def many(count: int) -> settings:
    return settings(SETTINGS, max_examples=count)


# --- what is changed ---

Base = tuple[str, Json, Headers, int | None]


@cache
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


def paths(config: Json, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where keys stand, those of sections included."""
    found = []
    for key, value in config.items():
        found.append((*before, key))
        if isinstance(value, dict):
            found += paths(value, (*before, key))
    return found


def at(config: Json, path: tuple[str, ...]) -> Json:
    for key in path[:-1]:
        config = config[key]
    return config


VALUES: tuple[Any, ...] = (True, False, 0, 1, -3, 7.5, "no", "", [], [1, "2"], {}, {"a": 1}, [[3]], 1e400, 10**30)
OTHERS: dict[str, tuple[Any, ...]] = {
    "architectures": (["Qwen3ForCausalLM"],),
    "layer_types": (["sliding_attention"] * 2, ["full_attention"] * 2, ["full_attention", "sliding_attention"]),
    "markov_head_type": ("vanilla", "gated", "rnn"),
    "rope_type": ("yarn", "default", "linear"),
    "projector_type": ("dspark", "dflash", "domino"),
    "hidden_act": ("gelu", "relu"),
    "dtype": ("float32", "float16"),
}


def other(data: st.DataObject, key: str, value: Any) -> Any:
    """Another value of the same type."""
    if key in OTHERS:
        return data.draw(st.sampled_from(OTHERS[key]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return data.draw(st.sampled_from([value + 1, value - 1, 2 * value, value // 2, -value, 0, 1, 3, 9]))
    if isinstance(value, float):
        return data.draw(st.sampled_from([value * 2, value / 3, -value, 0.0, 1.0]))
    if isinstance(value, str):
        return value + data.draw(st.sampled_from(["x", "_"]))
    if isinstance(value, list):
        return data.draw(st.sampled_from([value[:-1], value[::-1], value + value[:1], [*value, 7], []]))
    return value


# --- what must come of it ---

NAMES_OF_TENSORS = ("missing (", "of another shape (", "read by nothing (", "of a type that cannot")


def names_it(error: str, key: str, aliases: tuple[str, ...] = ()) -> bool:
    return any(name in error for name in (key, *aliases)) or any(part in error for part in NAMES_OF_TENSORS)


def differing(one: DrafterConfig | Any, two: DrafterConfig | Any) -> set[str]:
    return {name for name, value in vars(one).items() if vars(two)[name] != value}


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


def key_of(path: tuple[str, ...], table: Table, renames: dict[str, str]) -> Key | None:
    if len(path) > 1 and path[-2] in (*ROPE, "full_attention", "sliding_attention"):
        if table is TARGET_KEYS and path[-1] in table:
            return table[path[-1]]
        return ROPE_KEYS.get(path[-1], Key(path[-1], Use.NO_EFFECT, ""))
    return table.get(renames.get(path[-1], path[-1]))


def renames_of(name: str) -> dict[str, str]:
    producer = WRITERS[name.split(", ")[0]][1] if name.split(", ")[0] in WRITERS else ""
    return dict(next((d.renames for d in DIALECTS if d.name == producer), {}))


def check(key: Key, op: str, before: Any, after: Any, base: Outcome, made: Outcome, quiet: bool) -> None:
    """The rule of the table, for one change of one key."""
    changed = differing(base.config, made.config)
    said = {"op": op, "key": key.name, "before": before, "after": after, "changed": changed}
    if key.use is Use.REFUSED:
        assert after is None or one_of(after, key.accepted), said
    if key.use is not Use.HONOURED or op == "same":
        assert not changed, said
        return
    assert changed <= {*key.fields, "head_dim"} or not key.fields, said
    if changed or quiet or same(before, after):
        return
    if op in ("drop", "null"):
        assert one_of(before, key.absent) or _written_default(key, base, made), said
    else:
        assert one_of(after, key.absent) and (before is None or one_of(before, key.absent)), said


def _written_default(key: Key, base: Outcome, made: Outcome) -> bool:
    """Whether the value was the one that its producer's writer leaves out, or that follows from another key."""
    told = any("vLLM speculators" in note for note in made.notes)
    return told or key.name in ("head_dim", "attention_bias", "layer_types", *SHAPING_SECTIONS)


def chosen(data: st.DataObject) -> Base:
    names = [base[0] for base in bases()]
    return bases()[names.index(data.draw(st.sampled_from(names), label="base"))]


@many(1200)
@given(st.data())
def test_any_change_of_a_drafters_config(data: st.DataObject) -> None:
    name, config, headers, block = chosen(data)
    base = plan_drafter(config, headers, block)
    assert not base.error, base.error
    path = data.draw(st.sampled_from(paths(config)), label="path")
    op = data.draw(st.sampled_from(["drop", "null", "retype", "other", "same", "twice", "move", "unknown"]), label="op")
    changed = copy.deepcopy(config)
    section, name_ = at(changed, path), path[-1]
    before = section[name_]
    key = key_of(path, DRAFTER_KEYS, renames_of(name))
    rope = len(path) > 1 and path[0] != "dflash_config" and path[-2] in (*ROPE, "full_attention", "sliding_attention")
    if path[0] == "speculators_config" and len(path) > 1:
        return  # how the drafter is run; its one key is of test_conventions
    if op == "drop":
        del section[name_]
    elif op == "null":
        section[name_] = None
    elif op == "retype":
        section[name_] = data.draw(st.sampled_from([v for v in VALUES if type(v) is not type(before)]), label="value")
    elif op == "other":
        section[name_] = other(data, name_, before)
    elif op == "unknown":
        section[name_ + "_x"] = before
    elif op in ("same", "twice", "move"):
        if rope or isinstance(before, dict):
            return
        homes = [home for home in (*SHAPING_SECTIONS, "") if home != (path[0] if len(path) > 1 else "")]
        home = data.draw(st.sampled_from(homes), label="home")
        target = changed.setdefault(home, {}) if home else changed
        if not isinstance(target, dict) or target.get(name_) is not None:
            return
        target[name_] = other(data, name_, before) if op == "twice" else before
        if op == "move":
            del section[name_]
        if op == "twice" and same(target[name_], before):
            return
    made = plan_drafter(changed, headers, block)
    after = None if op in ("drop", "null") else section.get(name_)
    if op == "unknown" and before is None:
        return
    if op == "unknown":
        closed = len(path) > 1
        assert (made.error and name_ + "_x" in made.error) if closed else any(name_ + "_x" in n for n in made.notes), (
            path
        )
        if not closed:
            assert made.config == base.config
        return
    if op == "twice":
        if key is None or key.use is not Use.NO_EFFECT:
            # Where a home is new, it may make another producer of it, whose keys then stand in other words.
            assert made.error, (path, before, changed)
            assert names_it(made.error, name_, ALIASES.get(name_, ())), made.error
        return
    if made.error:
        assert names_it(made.error, name_, ALIASES.get(name_, ())), (path, op, before, after, made.error)
        assert key is None or key.use is not Use.NO_EFFECT or op == "retype", (path, op, made.error)
        return
    if key is None or path[0] == "speculators_config":
        return
    if op == "move":
        op, after = "same", before
    if op == "retype" and key.use is Use.HONOURED and isinstance(before, dict):
        raise AssertionError((path, after, "a section of another type was taken"))
    if op == "retype" and key.use is Use.HONOURED and type(after) is not type(before) and before is not None:
        number = isinstance(before, int | float) and isinstance(after, int | float) and not isinstance(after, bool)
        assert number or rope, (path, before, after)
    assert made.config is not None
    check(
        key, op, before, after, base, made, idle(key.name, base.config, config) or rope or said_elsewhere(config, path)
    )


# Where another name says it: keys that mean the same, and those that a section holds.
ALIASES: dict[str, tuple[str, ...]] = {
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


# --- tensors of a drafter ---

TYPES = ("F32", "F16", "I64", "BOOL", "I8", "F64")


def change_tensor(data: st.DataObject, headers: Headers) -> tuple[Headers, str, str]:
    """Headers with one tensor dropped, renamed, reshaped, retyped, doubled, or added to."""
    name = data.draw(st.sampled_from(sorted(headers)), label="tensor")
    op = data.draw(
        st.sampled_from(["drop", "rename", "shape", "rank", "dtype", "prefix", "suffix", "layer"]), label="op"
    )
    changed, stored = dict(headers), headers[name]
    if op == "drop":
        del changed[name]
    elif op in ("rename", "prefix"):
        del changed[name]
        after = f"model.{name}" if op == "prefix" else data.draw(st.sampled_from([f"x{name}", f"{name}x", f"x.{name}"]))
        changed[after] = replace(stored, name=after)
    elif op in ("shape", "rank"):
        shape = list(stored.shape)
        if op == "rank":
            shape = data.draw(st.sampled_from([[1, *shape], shape[:-1], [*shape, 1]]))
        else:
            axis = data.draw(st.sampled_from(range(len(shape))))
            shape[axis] += data.draw(st.sampled_from([1, -1, shape[axis]]))
        changed[name] = header(name, stored.dtype, tuple(shape))
    elif op == "dtype":
        changed[name] = header(name, data.draw(st.sampled_from(TYPES)), stored.shape)
    else:
        after = f"{name}.{data.draw(st.sampled_from(['absmax', 'lora_A', 'extra']))}" if op == "suffix" else ""
        after = after or name.replace("layers.1.", "layers.2.").replace("fc.", "fc2.")
        if after not in headers:
            changed[after] = replace(stored, name=after)
    return changed, name, op


@many(500)
@given(st.data())
def test_any_change_of_a_drafters_tensors(data: st.DataObject) -> None:
    _, config, headers, block = chosen(data)
    base = plan_drafter(config, headers, block)
    changed, name, op = change_tensor(data, headers)
    made = plan_drafter(config, changed, block)
    if changed.keys() == headers.keys() and all(changed[n] == headers[n] for n in headers):
        return
    own = common_name(name) in ("embed_tokens.weight", "lm_head.weight")
    if made.error:
        concerned = {name, common_name(name), *(changed.keys() - headers.keys())}
        concerned.add(common_name(name).removesuffix(".weight").removesuffix(".bias"))
        assert any(n in made.error for n in concerned), made.error
        assert not (op == "prefix" and name[0] != "x"), made.error
        assert not (op == "dtype" and changed[name].dtype in ("F32", "F16", "F64")), made.error
    elif op == "dtype":
        assert changed[name].dtype in ("F32", "F16", "F64")
        assert made.config == base.config
    elif op == "drop":
        assert own and made.config != base.config  # the target's table in its place
    else:
        assert op in ("prefix", "layer") and made.config == base.config


# --- targets ---


def plain_target() -> Base:
    return "target", TARGET, headers_of({}, TINY / "model.safetensors"), None


@many(550)
@given(st.data())
def test_any_change_of_a_targets_config(data: st.DataObject) -> None:
    _, config, headers, _ = plain_target()
    base = plan_target(config, headers)
    found = [path for path in paths(config) if path[0] != "vision_config" or len(path) == 1]
    path = data.draw(st.sampled_from(found), label="path")
    op = data.draw(st.sampled_from(["drop", "null", "retype", "other", "same", "twice", "move", "unknown"]), label="op")
    changed = copy.deepcopy(config)
    section, name = at(changed, path), path[-1]
    before = section[name]
    in_text = path[0] == "text_config" and len(path) == 2
    key = key_of(path, TARGET_KEYS, {})
    if op == "drop":
        del section[name]
    elif op == "null":
        section[name] = None
    elif op == "retype":
        section[name] = data.draw(st.sampled_from([v for v in VALUES if type(v) is not type(before)]), label="value")
    elif op == "other":
        section[name] = other(data, name, before)
    elif op == "unknown":
        section[name + "_x"] = before
    else:
        if not in_text or (isinstance(before, dict) and op == "twice") or name in changed:
            return
        changed[name] = other(data, name, before) if op == "twice" else before
        if op == "move":
            del section[name]
        if op == "twice" and same(changed[name], before):
            return
    made = plan_target(changed, headers)
    after = None if op in ("drop", "null") else section.get(name)
    if op == "unknown":
        noted = made.config == base.config and any(name + "_x" in note for note in made.notes)
        assert noted or name + "_x" in made.error  # by one rule, at the top level and inside
        return
    if made.error:
        assert names_it(made.error, name, TARGET_ALIASES.get(name, ())), (path, op, before, after, made.error)
        assert key is None or key.use is not Use.NO_EFFECT or op == "retype", (path, op, made.error)
        return
    assert key is not None, path
    if op == "twice":
        assert key.use is Use.NO_EFFECT or name in OUTER, (path, before, changed[name])
        return
    fields = differing(made.config[0], base.config[0]) - {"notes"}
    if key.use is not Use.HONOURED or op == "same":
        assert not fields, (path, op, fields)
        return
    if in_text and name in OUTER and name in config:
        return  # the outer model's own counts
    if key.use is Use.HONOURED and path not in (("text_config",),):
        assert fields <= {*key.fields, "rotary", "linear"} or path[-1] == "text_config", (path, op, fields)
    if fields or same(before, after) or made.notes != base.notes or made.config != base.config:
        return
    number = isinstance(before, int | float) and isinstance(after, int | float) and before == after
    assert (
        number or (op in ("drop", "null", "move") and name in MAY_BE_ABSENT) or path[-2:-1] == ("rope_parameters",)
    ), (
        path,
        op,
        before,
        after,
    )


# Keys that the outer model owns as well as the text model; and those whose absence says the same as this value.
OUTER = {"tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id", "dtype", "torch_dtype"}
MAY_BE_ABSENT = {
    "layer_types",
    "full_attention_interval",
    "tie_word_embeddings",
    "eos_token_id",
    "pad_token_id",
    "rope_type",
    "mtp_num_hidden_layers",
}
TARGET_ALIASES: dict[str, tuple[str, ...]] = {
    "text_config": ("text_config",),
    "rope_parameters": ("rope_theta", "partial_rotary_factor"),
    "head_dim": ("partial_rotary_factor", "mrope_section"),
    "partial_rotary_factor": ("mrope_section",),
    "rope_type": ("factor",),
    "tie_word_embeddings": ("lm_head",),
}


@many(250)
@given(st.data())
def test_any_change_of_a_targets_tensors(data: st.DataObject) -> None:
    _, config, headers, _ = plain_target()
    base = plan_target(config, headers)
    changed, name, op = change_tensor(data, headers)
    made = plan_target(config, changed)
    if changed.keys() == headers.keys() and all(changed[n] == headers[n] for n in headers):
        return
    left_out = name.startswith(("model.visual.", "mtp."))
    if made.error:
        concerned = {name, name.rsplit(".", 2)[-2], *(changed.keys() - headers.keys())}
        assert any(n in made.error for n in concerned), made.error
        assert not (op == "dtype" and changed[name].dtype in ("F32", "F16", "F64")), made.error
    elif op == "dtype":
        assert left_out or changed[name].dtype in ("F32", "F16", "F64")
    else:
        assert left_out or (name == "lm_head.weight" and op in ("prefix", "rename")), (name, op)
        assert left_out or made.config == base.config


# --- from the configuration to the graph ---


def other_fields() -> list[tuple[str, Any]]:
    """For each field of a drafter's configuration, a value that the tiny one has not."""
    layer = LayerAttention
    return [
        ("hidden_size", 256),
        ("intermediate_size", 225),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 1),
        ("head_dim", 64),
        ("rms_norm_eps", 1e-5),
        ("vocab_size", 641),
        ("layers", (layer(40, False), layer(None, False))),
        ("layers", (layer(None, True), layer(None, False))),
        ("target_layer_ids", (1, 3)),
        ("block_size", 9),
        ("top_k", 5),
        ("input_embedding_scale", 0.5),
        ("variant", DFlash2(3, 16, 24)),
        ("variant", DFlash2(2, 32, 24)),
        ("variant", DFlash2(2, 16, 25)),
        ("variant", DFlash2(2, 16, 24, output_multiplier=0.5)),
        ("variant", DFlash2(2, 16, 24, final_logit_softcapping=0.5)),
        ("attention_bias", True),
        ("attention_sinks", True),
        ("own_embedding", True),
        ("own_head", True),
        ("mask_row", MaskRow(np.ones(128, np.float32))),
    ]


def test_each_field_changes_the_graph() -> None:
    """But for the rotary embedding, whose tables are tested where they are made, and what the runtime is told."""
    config = plan_drafter(*_dflash2()).config
    texts = {"": graph_text(config)}
    for number, (field, value) in enumerate(other_fields()):
        assert getattr(config, field) != value
        texts[f"{field} {number}"] = graph_text(replace(config, **{field: value}))
    assert len(set(texts.values())) == len(texts)
    tested = {field for field, _ in other_fields()}
    elsewhere = {"rotary", "mask_token_id", "max_position_embeddings", "draft_vocab_size", "notes"}
    assert tested | elsewhere == set(DrafterConfig.__dataclass_fields__)


def _dflash2() -> tuple[Json, Headers, None]:
    config, tensors = written("z-lab, generation 2", "dflash2")
    return config, headers_of(tensors), None
