"""Changes of configurations and of tensors, drawn by hypothesis, each of which is one: what is drawn always differs.

Every example makes a claim: what it has to say of the outcome goes through ``claim``, and ``claiming`` counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from builder.qwen35.keys import KEYS as TARGET_KEYS
from drafters.checkpoint.config import DrafterConfig
from onnxkit.key_table import Key, Table, Use, same
from tests.planned import (
    Headers,
    Json,
    header,
)

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


def many(count: int) -> settings:
    """The settings of a test with so many examples."""
    return settings(SETTINGS, max_examples=count)


class Claims:
    """Claims on outcomes, counted, so that no example can end without one."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, holds: object, *said: object) -> None:
        """Claim something; ``said`` tells of the example."""
        self.count += 1
        assert holds, said


claim = Claims()


def claiming(test: Callable[[st.DataObject], None]) -> Callable[[st.DataObject], None]:
    """A property test of which every example has to make a claim."""

    @wraps(test)
    def run(data: st.DataObject) -> None:
        before = claim.count
        test(data)
        assert claim.count > before, "an example ended without a claim"

    return run


# --- configurations ---


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
        found: Iterable[Any] = OTHERS[key]
    elif isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found = [value + 1, value - 1, 2 * value, value // 2, -value, 0, 1, 3, 9]
    elif isinstance(value, float):
        found = [value * 2, value / 3, -value, 0.0, 1.0]
    elif isinstance(value, str):
        found = [value + "x", value + "_"]
    elif isinstance(value, list):
        found = [value[:-1], value[::-1], value + value[:1], [*value, 7], []]
    elif isinstance(value, dict):
        found = [value | {"x": 1}, {}]
    else:
        found = [1, "x"]
    return data.draw(st.sampled_from([candidate for candidate in found if not same(candidate, value)]), label="other")


def changed_alone(data: st.DataObject, op: str, section: Json, name: str) -> None:
    """Change a key where it stands."""
    before = section[name]
    if op == "drop":
        del section[name]
    elif op == "null":
        section[name] = None
    elif op == "retype":
        section[name] = data.draw(st.sampled_from([v for v in VALUES if type(v) is not type(before)]), label="value")
    elif op == "other":
        section[name] = other(data, name, before)
    else:
        assert op == "unknown"
        section[name + "_x"] = 1 if before is None else before


NAMES_OF_TENSORS = ("missing (", "of another shape (", "read by nothing (", "of a type that cannot")


def names_it(error: str, key: str, aliases: tuple[str, ...] = ()) -> bool:
    return any(name in error for name in (key, *aliases)) or any(part in error for part in NAMES_OF_TENSORS)


def differing(one: DrafterConfig | Any, two: DrafterConfig | Any) -> set[str]:
    return {name for name, value in vars(one).items() if vars(two)[name] != value}


def key_of(path: tuple[str, ...], table: Table, renames: dict[str, str]) -> Key | None:
    if len(path) > 1 and path[-2] in (*ROPE, "full_attention", "sliding_attention"):
        if table is TARGET_KEYS and path[-1] in table:
            return table[path[-1]]
        return ROPE_KEYS.get(path[-1], Key(path[-1], Use.NO_EFFECT, ""))
    return table.get(renames.get(path[-1], path[-1]))


# --- tensors ---

TYPES = ("F32", "F16", "I64", "BOOL", "I8", "F64")


def change_tensor(data: st.DataObject, headers: Headers) -> tuple[Headers, str, str]:
    """Headers with one tensor dropped, renamed, reshaped, retyped, doubled, or added to."""
    name = data.draw(st.sampled_from(sorted(headers)), label="tensor")
    ops = ["drop", "rename", "shape", "rank", "dtype", "prefix", "suffix"]
    further = one_more(name, headers)
    op = data.draw(st.sampled_from([*ops, "layer"] if further != name else ops), label="op")
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
        others = [dtype for dtype in TYPES if dtype != stored.dtype]
        changed[name] = header(name, data.draw(st.sampled_from(others)), stored.shape)
    else:
        after = further
        if op == "suffix":
            after = f"{name}.{data.draw(st.sampled_from(['absmax', 'lora_A', 'extra']))}"
        changed[after] = replace(stored, name=after)
    assert changed != headers
    return changed, name, op


def one_more(name: str, headers: Headers) -> str:
    """The name of the same tensor in a layer that there is not, or beside the one that fuses; or its own name."""
    layers = [int(found[1]) for other in headers if (found := re.search(r"layers\.(\d+)\.", other))]
    after = re.sub(r"layers\.\d+\.", f"layers.{max(layers, default=0) + 1}.", name).replace("fc.", "fc2.")
    return name if after in headers else after
