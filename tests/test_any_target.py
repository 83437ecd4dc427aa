"""Any change of a target's config or tensors leads to a build that differs as the key demands, or to a refusal.

As tests/test_any_drafter.py does it for drafters.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builder.qwen35.keys import KEYS as TARGET_KEYS
from onnxkit.key_table import Key, Use, same
from tests.changes import (
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
from tests.checkpoints import TINY
from tests.planned import (
    Outcome,
    headers_of,
    plan_target,
)
from tests.test_target_keys import CONFIG as TARGET

OPS = ("drop", "null", "retype", "other", "unknown")
HEADERS = headers_of({}, TINY / "model.safetensors")


@many(550)
@given(st.data())
@claiming
def test_any_change_of_a_targets_config(data: st.DataObject) -> None:
    base = plan_target(TARGET, HEADERS)
    found = [path for path in paths(TARGET) if path[0] != "vision_config" or len(path) == 1]
    path = data.draw(st.sampled_from(found), label="path")
    name, before = path[-1], at(TARGET, path)[path[-1]]
    elsewhere = []
    if path[0] == "text_config" and len(path) == 2 and name not in TARGET:
        elsewhere = ["same", "move", *([] if isinstance(before, dict) or before is None else ["twice"])]
    op = data.draw(st.sampled_from([*OPS, *elsewhere]), label="op")
    changed = copy.deepcopy(TARGET)
    section = at(changed, path)
    if op in elsewhere:
        changed[name] = other(data, name, before) if op == "twice" else before
        if op == "move":
            del section[name]
    else:
        changed_alone(data, op, section, name)
    made = plan_target(changed, HEADERS)
    key = key_of(path, TARGET_KEYS, {})
    if op == "unknown":
        noted = made.config == base.config and any(name + "_x" in note for note in made.notes)
        claim(noted or name + "_x" in made.error, path)  # by one rule, at the top level and inside
    elif made.error:
        claim(names_it(made.error, name, ALIASES.get(name, ())), path, op, before, made.error)
        claim(key is None or key.use is not Use.NO_EFFECT or op == "retype", path, op, made.error)
    elif op == "twice":
        claim(key is not None and (key.use is Use.NO_EFFECT or name in OUTER), path, before, changed[name])
    else:
        assert key is not None, path
        after = None if op in ("drop", "null") else section.get(name)
        claim_rule(path, op, key, (before, after), (base, made))


def claim_rule(
    path: tuple[str, ...], op: str, key: Key, values: tuple[Any, Any], outcomes: tuple[Outcome, Outcome]
) -> None:
    """What is taken differs as the table says."""
    (before, after), (base, made), name = values, outcomes, path[-1]
    fields = differing(made.config[0], base.config[0]) - {"notes"}
    if key.use is not Use.HONOURED or op == "same":
        claim(not fields, path, op, fields)
        return
    claim(fields <= {*key.fields, "rotary", "linear"}, path, op, fields)
    if len(path) == 2 and name in OUTER and name in TARGET:
        return  # the outer model's own counts
    if fields or same(before, after) or made.notes != base.notes or made.config != base.config:
        return
    number = isinstance(before, int | float) and isinstance(after, int | float) and before == after
    absent = op in ("drop", "null", "move") and name in MAY_BE_ABSENT
    claim(number or absent or path[-2:-1] == ("rope_parameters",), path, op, before, after)


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
ALIASES: dict[str, tuple[str, ...]] = {
    "text_config": ("text_config",),
    "rope_parameters": ("rope_theta", "partial_rotary_factor"),
    "head_dim": ("partial_rotary_factor", "mrope_section"),
    "partial_rotary_factor": ("mrope_section",),
    "rope_type": ("factor",),
    "tie_word_embeddings": ("lm_head",),
}


@many(250)
@given(st.data())
@claiming
def test_any_change_of_a_targets_tensors(data: st.DataObject) -> None:
    base = plan_target(TARGET, HEADERS)
    changed, name, op = change_tensor(data, HEADERS)
    made = plan_target(TARGET, changed)
    left_out = name.startswith(("model.visual.", "mtp."))
    if made.error:
        concerned = {name, name.rsplit(".", 2)[-2], *(changed.keys() - HEADERS.keys())}
        claim(any(n in made.error for n in concerned), made.error)
        claim(not (op == "dtype" and changed[name].dtype in ("F32", "F16", "F64")), made.error)
    elif op == "dtype":
        claim(left_out or changed[name].dtype in ("F32", "F16", "F64"), name)
    else:
        claim(left_out or (name == "lm_head.weight" and op in ("prefix", "rename")), name, op)
        claim(left_out or made.config == base.config, name, op)
