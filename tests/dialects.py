"""One tiny drafter in every producer's words: the same tensors under other names, the same numbers under other keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny_drafter import Json, Tensors, make_config, make_tensors, write

Written = tuple[Json, Tensors]
Writer = Callable[[Json, Json, Tensors, str], Written]
KINDS = ("dflash", "dflash2", "dspark", "gated")
TITLES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}


def original(kind: str, *, yarn: bool = False) -> tuple[Json, Json, Tensors]:
    """The drafter itself: the layers' keys, the drafter's own, and the tensors under the graph's names."""
    config = make_config("dflash2" if kind == "dflash2" else "dspark")
    own: Json = config.pop("dflash_config")
    if kind == "gated":
        own["markov_head_type"] = "gated"
    tensors = make_tensors(config | {"dflash_config": own})
    if kind == "dflash":
        for name in ("markov_rank", "markov_head_type", "projector_type"):
            del own[name]
        tensors = {name: tensor for name, tensor in tensors.items() if "markov_head" not in name}
    for key in ("architectures", "is_causal", "projector_type", "use_sliding_window", "sliding_window"):
        config.pop(key, None)
        own.pop(key, None)
    if yarn:
        config["rope_parameters"] |= {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64}
    return config, own, tensors


def family(kind: str) -> str:
    """The kind without the kind of its Markov head."""
    return "dspark" if kind == "gated" else kind


def flat_rope(layers: Json) -> Json:
    """The rotary keys as transformers 4 wrote them."""
    rope = dict(layers["rope_parameters"])
    theta = rope.pop("rope_theta")
    scaling = None if rope == {"rope_type": "default"} else {"type": rope.pop("rope_type"), **rope}
    return {key: value for key, value in layers.items() if key != "rope_parameters"} | {
        "rope_theta": theta,
        "rope_scaling": scaling,
    }


def renamed(tensors: Tensors, *pairs: tuple[str, str]) -> Tensors:
    """Tensors whose names begin otherwise."""
    result = {}
    for name, tensor in tensors.items():
        for before, after in pairs:
            if name.startswith(before):
                name = after + name.removeprefix(before)
                break
        result[name] = tensor
    return result


def zlab_1(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Generation 1: ``block_size`` and rotary keys at the top level."""
    own = dict(own)
    top = {"architectures": [TITLES[kind]], "auto_map": {"AutoModel": f"dflash.{TITLES[kind]}"}}
    return top | flat_rope(layers) | {"block_size": own.pop("block_size"), "dflash_config": own}, tensors


def zlab_2(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Generation 2 and DFlash 2: everything in sections."""
    return {"architectures": [TITLES[kind]], "is_causal": False, **layers, "dflash_config": own}, tensors


def muse(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Flat, with other names for the fused taps."""
    names = renamed(tensors, ("fc.", "encoder.fc."), ("hidden_norm.", "encoder.output_norm_enc."))
    return {"architectures": ["MuseGlimmerAssistantModel"], **layers, **own}, names


def specforge(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Both rotary spellings; null where nothing is meant."""
    own, rope = dict(own), layers["rope_parameters"]
    top = {"architectures": [TITLES[family(kind)]], "target_hidden_size": None, "block_size": own.pop("block_size")}
    top |= {"rope_theta": rope["rope_theta"], "rope_scaling": rope if "factor" in rope else None}
    own |= {"projector_type": family(kind), "attention_mode": "gqa", "confidence_head_alpha": 0.0}
    return top | layers | {"dflash_config": own}, tensors


def specforge_early(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Heads nested once more, and a trainer's prefix on all names."""
    config, _ = specforge(layers, own, tensors, kind)
    names = renamed(tensors, ("markov_head.", "logit_head.markov_head."))
    return config, {f"draft_model.{name}": tensor for name, tensor in names.items()}


def radixark(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """The own keys at the top level, some of them in ``dspark_config``, too; others null."""
    nested = {key: own[key] for key in ("mask_token_id", "target_layer_ids", "markov_rank")}
    top = {"architectures": ["DSparkDraftModel"], "training_block_size": 16, "max_window_layers": 28}
    more = {"dspark_config": nested, "target_layer_ids": None}
    return top | layers | {key: own[key] for key in own if key not in nested} | {"markov_rank": 24} | more, tensors


def modelopt(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """``DFlashDraftModel`` whatever the kind, flat names of the Markov head, both conventions of taps."""
    names = renamed(tensors, ("markov_head.", ""), ("confidence_head.proj.", "confidence_proj."))
    own = own | {"projector_type": family(kind), "shift_label": True, "use_confidence_head": False, "causal": False}
    if family(kind) != "dspark":
        own |= {"use_confidence_head": None}
    taps = {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in own["target_layer_ids"]]}
    top = {"architectures": ["DFlashDraftModel"], "block_size": own["block_size"], "attention_sink_bias": False}
    return top | flat_rope(layers) | taps | {"dflash_config": own}, names


def deepspec(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """A copy of the target's keys with flat ones."""
    noise = {"partial_rotary_factor": 0.25, "attn_output_gate": True, "linear_num_key_heads": 2, "num_anchors": 512}
    rope = layers["rope_parameters"] | {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
    top = {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3_5_text", "enable_confidence_head": False}
    return top | layers | noise | own | {"rope_parameters": rope}, tensors


def speculators(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Nested, taps by the streams that enter layers, the drafts of a run beside the block."""
    drafts = own["block_size"] - (family(kind) != "dspark")
    config = {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": family(kind),
        "speculators_config": {"algorithm": "x", "proposal_methods": [{"speculative_tokens": drafts}], "verifier": {}},
        "aux_hidden_state_layer_ids": [layer + 1 for layer in own["target_layer_ids"]],
        "draft_vocab_size": layers["vocab_size"],
        "target_hidden_size": None,
        "transformer_layer_config": layers,
        **{key: value for key, value in own.items() if key != "target_layer_ids"},
    }
    if family(kind) == "dspark":
        config |= {"enable_confidence_head": False, "sample_from_anchor": True}
    return config, tensors


def speculators_flat(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """The same without a section, and without what has its default."""
    config, _ = speculators(layers, own, tensors, kind)
    layers = config.pop("transformer_layer_config")
    for key in ("hidden_act", "rms_norm_eps", "attention_bias", "layer_types"):
        assert layers.get(key) in ("silu", 1e-6, False, ["full_attention"] * 2)
    left_out = ("hidden_act", "rms_norm_eps", "attention_bias", "layer_types", "block_size", "sample_from_anchor")
    return {key: value for key, value in (config | layers).items() if key not in left_out}, tensors


def speculators_by_kind(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Rotary entries for each kind of layer."""
    config, _ = speculators(layers, own, tensors, kind)
    rope = layers["rope_parameters"]
    by_kind = {"sliding_attention": rope, "full_attention": rope}
    return config | {"transformer_layer_config": layers | {"rope_parameters": by_kind}}, tensors


def torchspec(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """Other names, and no block size."""
    names = renamed(tensors, ("fc.", "context_proj."), ("hidden_norm.", "context_norm."), ("norm.", "final_norm."))
    top = {"model_type": "dflash", "target_num_hidden_layers": 8, "num_target_layers": 3, "target_hidden_size": 128}
    return layers | {key: value for key, value in own.items() if key != "block_size"} | top, names


def verl(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """TorchSpec's keys with the target's layers where that has its taps, without an activation."""
    top = {"architectures": [TITLES[family(kind)]], "model_type": family(kind), "num_context_layers": 3}
    top |= {"target_num_hidden_layers": 8, "num_target_layers": 8, "target_hidden_size": 128, "ce_loss_alpha": 0.1}
    kept = {key: value for key, value in layers.items() if key != "hidden_act"}
    return kept | {key: value for key, value in own.items() if key != "projector_type"} | top, tensors


def automodel(layers: Json, own: Json, tensors: Tensors, kind: str) -> Written:
    """An architecture of its own, ``causal``, a leaked share of the head, and codebooks saved as embeddings."""
    names = {f"{name}.weight" if name.endswith("_codebook") else name: tensor for name, tensor in tensors.items()}
    own = own | {"causal": False}
    return {
        "architectures": ["Qwen3DFlashDraftModel"],
        "partial_rotary_factor": 0.25,
        **layers,
        "dflash_config": own,
    }, {f"model.{name}": tensor for name, tensor in names.items()}


DSPARK = ("dspark", "gated")
DFLASH = ("dflash", "dflash2")

# Each producer's words, who reads them, and the kinds that it has.
WRITERS: dict[str, tuple[Writer, str, tuple[str, ...]]] = {
    "z-lab, generation 1": (zlab_1, "z-lab / Inco", DFLASH),
    "z-lab, generation 2": (zlab_2, "z-lab / Inco", DFLASH),
    "Muse": (muse, "z-lab / Inco", DFLASH),
    "SpecForge": (specforge, "SpecForge", KINDS),
    "SpecForge, early": (specforge_early, "SpecForge", DSPARK),
    "RadixArk": (radixark, "SpecForge", ("dspark",)),
    "ModelOpt": (modelopt, "NVIDIA ModelOpt", KINDS),
    "DeepSpec": (deepspec, "DeepSpec", DSPARK),
    "speculators": (speculators, "vLLM speculators", ("dflash", "dflash2", "dspark", "gated")),
    "speculators, flat": (speculators_flat, "vLLM speculators", ("dflash", "dflash2", "dspark", "gated")),
    "speculators, by kind": (speculators_by_kind, "vLLM speculators", ("dflash2", "dspark")),
    "TorchSpec": (torchspec, "TorchSpec", ("dflash",)),
    "verl-SpeCo": (verl, "verl-SpeCo", ("dflash", "dspark")),
    "Automodel": (automodel, "NeMo Automodel", DFLASH),
}

# Every pair of a producer and a kind.
PAIRS = [(producer, kind) for producer, (_, _, kinds) in WRITERS.items() for kind in kinds]


def written(producer: str, kind: str, *, yarn: bool = False) -> Written:
    """A drafter's configuration and tensors in a producer's words."""
    writer = WRITERS[producer][0]
    config, tensors = writer(*original(kind, yarn=yarn), kind)
    return config, tensors


def write_as(producer: str, kind: str, folder: Path, *, yarn: bool = False) -> Path:
    """A drafter's folder in a producer's words."""
    write(folder, *written(producer, kind, yarn=yarn))
    return folder


def options_of(producer: str) -> tuple[str, ...]:
    """The options that a producer's drafter needs."""
    return ("drafter_block_size=8",) if producer == "TorchSpec" else ()


def with_biases(config: Json, tensors: Tensors) -> None:
    """Give the attention projections biases."""
    config["attention_bias"] = True
    rng = np.random.default_rng(8)
    for name in [name for name in tensors if "self_attn" in name and name.endswith("_proj.weight")]:
        _add(tensors, name.replace(".weight", ".bias"), rng, tensors[name].shape[0])


def with_sinks(config: Json, tensors: Tensors) -> None:
    """Give the heads sinks."""
    config["dflash_config"]["attention_sink_bias"] = config["attention_sink_bias"] = True
    rng = np.random.default_rng(9)
    for layer in range(config["num_hidden_layers"]):
        name = f"layers.{layer}.self_attn.attention_sink_bias"
        _add(tensors, name, rng, config["num_attention_heads"])
        tensors[name] = (tensors[name].astype(np.float32) * 3 + 1).astype(tensors[name].dtype)


def with_tables(config: Json, tensors: Tensors) -> None:
    """Give the drafter an embedding and a head that are not the target's."""
    rng = np.random.default_rng(10)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        _add(tensors, name, rng, config["vocab_size"], config["hidden_size"], scale=0.2)


def with_reduced_vocabulary(config: Json, tensors: Tensors, rows: int = 320) -> None:
    """Give the drafter a head over a part of the vocabulary, in speculators' words."""
    rng = np.random.default_rng(11)
    config["draft_vocab_size"] = rows
    ids = np.sort(rng.permutation(config["vocab_size"])[:rows])
    _add(tensors, "lm_head.weight", rng, rows, config["hidden_size"], scale=0.2)
    tensors["d2t"] = ids - np.arange(rows)
    tensors["t2d"] = np.isin(np.arange(config["vocab_size"]), ids)
    if "markov_head.markov_w2.weight" in tensors:
        tensors["markov_head.markov_w2.weight"] = tensors["markov_head.markov_w2.weight"][:rows].copy()


def _add(tensors: Tensors, name: str, rng: np.random.Generator, *shape: int, scale: float = 0.5) -> None:
    values: Any = scale * rng.standard_normal(shape)
    tensors[name] = values.astype(tensors["fc.weight"].dtype)
