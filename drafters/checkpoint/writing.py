"""A drafter's ``config.json`` as a producer writes it, for a drafter that was trained here.

What was written reads as the same drafter. What a producer's form cannot express is refused, never left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafters.checkpoint import conventions
from drafters.checkpoint.config import DFlash2, DrafterConfig, DSpark
from drafters.checkpoint.conventions import FULL, SLIDING
from drafters.checkpoint.dialects import DIALECTS, recognise
from drafters.checkpoint.dialects.dialect import Bound, Dialect, Rope
from drafters.checkpoint.keys import CAUSAL_KEYS
from drafters.checkpoint.sections import ConfigSections
from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject
from onnxkit.rotary import BETA_FAST, BETA_SLOW, Rotary, yarn_attention_factor

Json = dict[str, Any]

# The producers whose form is known well enough to be written, by their names.
WRITERS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS if dialect.layout}

_CONFIG_FILE = "config.json"


def write_config(folder: Path, config: DrafterConfig, dialect: Dialect, num_target_layers: int) -> Path:
    """Write ``config.json`` into a drafter's folder, as a producer would.

    Args:
        folder: An existing folder.
        config: The drafter. Which tensors it has of its own, the tensors say.
        dialect: The producer; one of :data:`WRITERS`.
        num_target_layers: The target's layers.

    Returns:
        The file's path.

    Raises:
        ExportError: The producer's form has no words for this drafter.
    """
    path = folder / _CONFIG_FILE
    data = config_json(config, dialect, num_target_layers)
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path


def config_json(config: DrafterConfig, dialect: Dialect, num_target_layers: int) -> Json:
    """What :func:`write_config` writes."""
    layout, family = dialect.layout, config.family
    if layout is None or family not in (layout.families or dialect.architectures):
        raise _no_words(dialect, f"a {family.label} drafter")
    own = _own_keys(config, dialect) | dict(layout.by_family.get(family, {}))
    top = _backbone(config, dialect, num_target_layers) | _rotary(config, dialect, layout.rope) | dict(layout.always)
    section = {key: value for key, value in own.items() if key in layout.own}
    top |= {key: value for key, value in own.items() if key in layout.top}
    data = top | section if layout.section is None else top | {layout.section: section}
    _check_reading(config, dialect, data)
    return data


def _backbone(config: DrafterConfig, dialect: Dialect, num_target_layers: int) -> Json:
    """The keys of the layers, which are transformers' for Qwen 3."""
    data: Json = {
        "architectures": [dialect.architectures[config.family][0]],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": False,
        "num_target_layers": num_target_layers,
    }
    slides = [layer.window is not None for layer in config.layers]
    if dialect.windows.switch:
        data |= {"layer_types": [FULL] * len(slides)} | ({"sliding_window": config.window} if any(slides) else {})
    else:
        windows = {layer.window for layer in config.layers if layer.window is not None}
        data |= {
            "layer_types": [SLIDING if layer else FULL for layer in slides],
            "use_sliding_window": any(slides),
            "sliding_window": max(windows) if windows else None,
        }
    return data


def _rotary(config: DrafterConfig, dialect: Dialect, rope: Rope) -> Json:
    rotary = config.rotary
    if rotary.dim != config.head_dim:
        raise _no_words(dialect, f"a rotary embedding of {rotary.dim} of {config.head_dim} channels")
    scaling = _scaling(rotary)
    parameters = {"rope_type": "default", **scaling, "rope_theta": rotary.theta}
    if rope is Rope.PARAMETERS:
        return {"rope_parameters": parameters}
    if rope is Rope.BOTH:
        mirrored = {"rope_scaling": scaling} if scaling else {}
        return {"rope_parameters": parameters, "rope_theta": rotary.theta, **mirrored}
    old = {"type": scaling.pop("rope_type"), **scaling} if scaling else None
    return {"rope_theta": rotary.theta, "rope_scaling": old}


def _scaling(rotary: Rotary) -> Json:
    """What describes YaRN: nothing where it is the default, which programs agree about."""
    yarn = rotary.yarn
    if yarn is None:
        return {}
    said: Json = {"rope_type": "yarn", "factor": yarn.factor, "original_max_position_embeddings": yarn.original_length}
    optional = {
        "beta_fast": (yarn.beta_fast, BETA_FAST),
        "beta_slow": (yarn.beta_slow, BETA_SLOW),
        "attention_factor": (yarn.attention_factor, yarn_attention_factor(yarn.factor)),
        "truncate": (yarn.truncate, True),
    }
    return said | {key: value for key, (value, default) in optional.items() if value != default}


def _own_keys(config: DrafterConfig, dialect: Dialect) -> Json:
    """The drafter's own keys that the producer writes.

    Raises:
        ExportError: One that the producer does not write would be needed.
    """
    assert dialect.layout is not None
    known = {*dialect.layout.own, *dialect.layout.top}
    always: Json = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        next(key for key, tap in dialect.taps.items() if not tap.offset): list(config.target_layer_ids),
    }
    needed: Json = {
        "input_embedding_scale": config.input_embedding_scale,
        "attention_sink_bias": config.attention_sinks or None,
        "draft_vocab_size": config.draft_vocab_size,
        **_attention(config, dialect),
    }
    if isinstance(config.variant, DSpark):
        _add_dspark(config.variant, config.hidden_size, dialect, always, needed)
    else:
        needed["output_multiplier"] = config.variant.output_multiplier
        needed["final_logit_softcapping"] = config.variant.final_logit_softcapping
    if isinstance(config.variant, DFlash2):
        always |= {
            "conv_kernel_size": config.variant.conv_kernel_size,
            "conv_group_size": config.variant.conv_group_size,
            "selector_rank": config.variant.selector_rank,
            "selector_top_k": config.top_k,
        }
    rule = dialect.anchor
    if rule.key and config.family in rule.families:
        always[rule.key] = config.anchor_predicts
    elif config.anchor_predicts is not rule.absent[config.family]:
        raise _no_words(dialect, f"whether the anchor's row predicts: {config.anchor_predicts}".lower())
    if wordless := [key for key, value in needed.items() if value is not None and key not in known]:
        raise _no_words(dialect, f"{wordless[0]}: {needed[wordless[0]]}")
    return always | {key: value for key, value in needed.items() if value is not None}


def _attention(config: DrafterConfig, dialect: Dialect) -> Json:
    """What windows and causality need beyond ``layer_types``."""
    windows, key = dialect.windows, next((key for key in CAUSAL_KEYS if _writes(dialect, key)), "causal")
    ways = {layer.causal for layer in config.layers}
    said: Json = {}
    if windows.bound is Bound.NONE and any(layer.window for layer in config.layers):
        raise _no_words(dialect, "layers that slide")
    if windows.switch and windows.size:
        said[windows.switch] = config.window is not None or None
        said[windows.size] = config.window
        default = None  # its exporter always says it
    else:
        default = all(layer.causal is (layer.window is not None) for layer in config.layers)
    if not default:
        said[key] = ways == {True} if len(ways) == 1 else None
    return said


def _writes(dialect: Dialect, key: str) -> bool:
    return dialect.layout is not None and key in (*dialect.layout.own, *dialect.layout.top)


def _add_dspark(variant: DSpark, hidden: int, dialect: Dialect, always: Json, needed: Json) -> None:
    always["markov_rank"] = variant.markov_rank
    if variant.markov_rank:
        always["markov_head_type"] = "gated" if variant.gated else "vanilla"
    width = variant.confidence_width
    always[dialect.confidence_key] = width is not None
    if width is not None and variant.markov_rank:
        both = width == hidden + variant.markov_rank
        # Where no key tells, the confidence head reads the previous token's embedding, too.
        (always if both else needed)["confidence_head_with_markov"] = both


def _check_reading(config: DrafterConfig, dialect: Dialect, data: Json) -> None:
    """Check that layers and rotary embedding are read as they are meant, and that the producer is told."""
    written = JsonObject(data, f"{_CONFIG_FILE} of {dialect.name}")
    if recognise(written, ())[0] is not dialect:
        raise RuntimeError(f"what was written for {dialect.name} is not told to be its")
    sections = ConfigSections(written, dialect, config.family)
    rotary = conventions.rotary(sections, config.head_dim, conventions.layer_kinds(sections))
    assert rotary == config.rotary, rotary
    if conventions.layers(sections, config.block_size) != config.layers:
        raise _no_words(dialect, f"its layers' windows and causality: {', '.join(map(str, config.layers))}")


def _no_words(dialect: Dialect, found: str) -> ExportError:
    others = ", ".join(name for name in WRITERS if name != dialect.name)
    return ExportError(
        "A drafter cannot be written in this producer's form.",
        where=f"{_CONFIG_FILE}, as {dialect.name} writes it",
        found=found,
        accepted="what the producer's own configurations can say",
        fix=f"Choose another form: {others}.",
    )
