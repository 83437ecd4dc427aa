"""Configurations that are written for a drafter, in each producer's form: they read as the same drafter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.checkpoint.config import DFlash, DFlash2, DrafterConfig, DSpark, LayerAttention
from drafters.checkpoint.identity import identity
from drafters.checkpoint.kinds import Family
from drafters.checkpoint.reading import read_identified
from drafters.checkpoint.writing import WRITERS, config_json, write_config
from onnxkit.errors import ExportError
from onnxkit.rotary import Rotary, Yarn, yarn_attention_factor
from tests.planned import Headers, checkpoint, header
from tests.producers import Case, cases
from tests.test_real_configs import ASSETS, case, tensors

HIDDEN, RANK, VOCAB = 128, 24, 640
PLAIN = DrafterConfig(
    hidden_size=HIDDEN,
    intermediate_size=224,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    rms_norm_eps=1e-5,
    vocab_size=VOCAB,
    max_position_embeddings=4096,
    rotary=Rotary(1e6, 32),
    layers=(LayerAttention(None, False),) * 2,
    target_layer_ids=(5, 1, 3),
    block_size=8,
    mask_token_id=630,
    top_k=16,
    input_embedding_scale=None,
    variant=DFlash(),
)
VARIANTS: dict[str, DFlash | DFlash2 | DSpark] = {
    "dflash": DFlash(),
    "dflash, scaled": DFlash(0.5, 20.0),
    "dflash, anchor": DFlash(anchor_predicts=True),
    "dflash2": DFlash2(3, 16, RANK),
    "dflash2, scaled": DFlash2(2, 32, RANK, 0.19, 20.0),
    "dspark, vanilla": DSpark(RANK, False),
    "dspark, gated": DSpark(RANK, True, HIDDEN + RANK),
    "dspark, narrow": DSpark(RANK, False, HIDDEN),
    "dspark, rank 0": DSpark(0, False, HIDDEN),
    "dspark, mute": DSpark(RANK, False, anchor_predicts=False),
}
YARN = Yarn(8.0, 128, yarn_attention_factor(8.0))
ROTARY = {
    "plain": Rotary(1e7, 32),
    "yarn": Rotary(1e6, 32, YARN),
    "yarn, all": Rotary(5e5, 32, Yarn(8.0, 128, 1.25, 16.0, 2.0, truncate=False)),
}
LAYERS = st.tuples(st.sampled_from([None, 64, 5]), st.booleans()).map(lambda pair: LayerAttention(*pair))

# What each producer's form can say: not all kinds, not each way to attend, not each factor. (From what the producers'
# own configurations in tests/assets say; that a form refuses the rest is checked, too.)
FAMILIES = {
    "z-lab / Inco": {Family.DFLASH, Family.DFLASH2},
    "SpecForge": {Family.DFLASH, Family.DSPARK},
    "NVIDIA ModelOpt": set(Family),
    "DeepSpec": {Family.DSPARK},
}


def headers(config: DrafterConfig) -> Headers:
    """The tensors that tell what no key does."""
    names = ["fc.weight", "hidden_norm.weight", "norm.weight"]
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(config.variant, DFlash2):
        names.append("candidate_selector.predecessor_codebook")
    if isinstance(config.variant, DSpark):
        names += ["markov_head.markov_w1.weight"] * bool(config.variant.markov_rank)
        names += ["markov_head.gate_proj.weight"] * config.variant.gated
        if config.variant.confidence_width:
            shapes |= {"confidence_head.proj.weight": (1, config.variant.confidence_width)}
            shapes |= {"confidence_head.proj.bias": (1,)}
    if config.own_embedding:
        names.append("embed_tokens.weight")
    if config.own_head:
        names.append("lm_head.weight")
    return {name: header(name, "BF16", shapes.get(name, (VOCAB, VOCAB))) for name in (*names, *shapes)}


def read(data: dict[str, Any], config: DrafterConfig, stored: Headers | None = None) -> DrafterConfig:
    made = checkpoint(json.loads(json.dumps(data)), headers(config) if stored is None else stored)
    found = identity(made)
    return replace(read_identified(made, found, config.top_k), notes=())


@st.composite
def drafters(draw: st.DrawFn) -> DrafterConfig:
    layer, count = draw(LAYERS), draw(st.integers(1, 3))
    layers = draw(st.one_of(st.just([layer] * count), st.lists(LAYERS, min_size=1, max_size=3)))
    if draw(st.booleans()):  # the way of a drafter whose configuration says nothing of causality
        layers = [replace(layer, causal=layer.window is not None) for layer in layers]
    variant = VARIANTS[draw(st.sampled_from(list(VARIANTS)))]
    rotary = ROTARY[draw(st.sampled_from(list(ROTARY)))]
    return replace(
        PLAIN,
        layers=tuple(layers),
        variant=variant,
        rotary=rotary,
        block_size=draw(st.sampled_from([2, 5, 8])),
        target_layer_ids=tuple(draw(st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True))),
        top_k=draw(st.integers(1, 20)) if isinstance(variant, DFlash2) else 16,
        max_position_embeddings=draw(st.sampled_from([128, 1024])),
        input_embedding_scale=draw(st.sampled_from([None, None, 3.0])),
        attention_bias=draw(st.booleans()),
        attention_sinks=draw(st.sampled_from([False, False, True])),
        own_embedding=(own := draw(st.booleans())),
        own_head=own,
    )


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_reads_as_the_same_drafter(name: str) -> None:
    written: set[tuple[Family, bool, bool]] = set()

    @settings(max_examples=400, derandomize=True, database=None, deadline=None)
    @given(drafters())
    def one(config: DrafterConfig) -> None:
        try:
            data = config_json(config, WRITERS[name], 31)
        except ExportError as error:
            assert config.family not in FAMILIES[name] or plain(config) is False, error
            assert name in str(error)
            return
        assert config.family in FAMILIES[name]
        assert read(data, config) == config
        written.add((config.family, bool(config.window), config.rotary.yarn is not None))

    one()
    assert {family for family, _, _ in written} == FAMILIES[name]
    assert {stretched for _, _, stretched in written} == {False, True}
    assert {slides for _, slides, _ in written} == ({False} if name == "DeepSpec" else {False, True})


def plain(config: DrafterConfig) -> bool:
    """Whether it is a drafter that every form of its kind has words for."""
    variants = (VARIANTS[name] for name in ("dflash", "dflash2", "dspark, vanilla", "dspark, gated", "dspark, rank 0"))
    full = all(layer == LayerAttention(None, False) for layer in config.layers)
    return full and config.variant in variants and not config.attention_sinks and config.input_embedding_scale is None


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("rotary", ROTARY)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_and_scaling(name: str, rotary: str, variant: str) -> None:
    """Each of the plain ones is written, by hand rather than by chance."""
    config = replace(PLAIN, variant=VARIANTS[variant], rotary=ROTARY[rotary], max_position_embeddings=1024)
    if config.family in FAMILIES[name] and plain(config):
        assert read(config_json(config, WRITERS[name], 31), config) == config
    elif config.family not in FAMILIES[name]:
        with pytest.raises(ExportError, match=config.family.label):
            config_json(config, WRITERS[name], 31)


def windows(window: int, causal: bool, others: bool | None = None) -> Callable[[DrafterConfig], DrafterConfig]:
    slides = LayerAttention(window, causal)
    layers = (slides, slides if others is None else LayerAttention(None, others))
    return lambda config: replace(config, layers=layers)


@pytest.mark.parametrize(
    ("name", "variant", "change", "word"),
    [
        ("z-lab / Inco", "dflash", windows(64, False), None),
        ("z-lab / Inco", "dflash2", windows(64, False, False), None),
        ("z-lab / Inco", "dflash", windows(5, True, False), None),
        ("z-lab / Inco", "dflash", windows(64, True, True), None),
        ("z-lab / Inco", "dflash", windows(64, False, True), "windows and causality"),
        ("z-lab / Inco", "dflash", windows(5, False), "at least block_size"),
        ("z-lab / Inco", "dflash, anchor", lambda config: config, "anchor's row"),
        ("z-lab / Inco", "dflash", lambda config: replace(config, attention_sinks=True), "attention_sink_bias"),
        ("z-lab / Inco", "dflash", lambda config: replace(config, draft_vocab_size=320), "draft_vocab_size"),
        ("SpecForge", "dspark, vanilla", windows(64, True, False), None),
        ("SpecForge", "dspark, vanilla", windows(64, False), "causal"),
        ("SpecForge", "dflash, scaled", lambda config: config, "output_multiplier"),
        ("NVIDIA ModelOpt", "dspark, mute", lambda config: config, None),
        ("NVIDIA ModelOpt", "dspark, vanilla", windows(64, False), None),
        ("NVIDIA ModelOpt", "dspark, vanilla", windows(64, True), None),
        ("NVIDIA ModelOpt", "dspark, vanilla", windows(64, True, False), "windows and causality"),
        ("NVIDIA ModelOpt", "dspark, vanilla", windows(5, True), "at least block_size"),
        ("NVIDIA ModelOpt", "dspark, narrow", lambda config: config, "confidence_head_with_markov"),
        ("NVIDIA ModelOpt", "dflash", lambda config: replace(config, attention_sinks=True), None),
        ("DeepSpec", "dspark, narrow", lambda config: config, None),
        ("DeepSpec", "dspark, vanilla", windows(64, True), "slide"),
        ("DeepSpec", "dspark, mute", lambda config: config, "anchor's row"),
    ],
)
def test_what_a_form_can_say(
    name: str, variant: str, change: Callable[[DrafterConfig], DrafterConfig], word: str | None
) -> None:
    config = change(replace(PLAIN, variant=VARIANTS[variant]))
    if word is None:
        assert read(config_json(config, WRITERS[name], 31), config) == config
    else:
        with pytest.raises(ExportError, match=word):
            config_json(config, WRITERS[name], 31)


# --- against what the producers themselves have written ---

RELEASES = [
    path.stem
    for path in sorted(ASSETS.glob("*.json"))
    if case(path.stem)["role"] == "drafter" and case(path.stem)["expected"] == "exported"
]

# Keys that other releases of a producer write elsewhere, or not at all: those of its newest are written.
OLDER = {
    "z-lab / Inco": {"rope_parameters", "dflash_config.block_size"},
    "SpecForge": {"rope_parameters", "rope_theta", "rope_scaling"},
    "NVIDIA ModelOpt": {"dflash_config.causal", "dflash_config.shift_label"},
    "DeepSpec": {"layer_types"},
}

# Releases that say one thing by a key of their own, or at a place of their own.
APART = {
    "JetSpec_jetspec_Qwen3.6_35B_A3B_causal_head": {"is_causal"},
    "z_lab_gemma_4_26B_A4B_it_DFlash_final_logit_softcapping_at_the_top": {"dflash_config.final_logit_softcapping"},
}


def flat(data: dict[str, Any]) -> dict[str, Any]:
    """Keys with their sections."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key == "dflash_config":
            found |= {f"{key}.{inner}": content for inner, content in value.items()}
        else:
            found[key] = value
    return found


def rewritten(data: dict[str, Any], stored: Headers) -> tuple[str, dict[str, Any]] | None:
    """A producer's own configuration, read and written again in its form; None of other producers'."""
    made = checkpoint(data, stored)
    found = identity(made)
    if found.dialect.name not in WRITERS:
        return None
    config = replace(read_identified(made, found), notes=())
    again = config_json(config, found.dialect, data["num_target_layers"])
    assert read(again, config, stored) == config
    return found.dialect.name, again


def check_against(name: str, data: dict[str, Any], again: dict[str, Any], missing: set[str]) -> None:
    """Each key that is written stands in the producer's own file, at the same place with the same value."""
    theirs, ours = flat(data), flat(again)
    assert {key for key in ours if key not in theirs and ours[key] not in (None, False)} <= missing
    for key in ours.keys() & theirs.keys() - {"max_position_embeddings", "model_type"}:
        value = theirs[key]
        if key in ("rope_parameters", "rope_scaling") and isinstance(value, dict) and isinstance(ours[key], dict):
            assert all(ours[key][part] == value[part] for part in ours[key].keys() & value.keys())
        else:
            assert ours[key] == value or key in ("architectures", "tie_word_embeddings", "rope_scaling"), (name, key)


@pytest.mark.parametrize("name", [name for name in cases() if name.split("/")[0].split("-")[0] != "automodel"])
def test_producers_own_files(name: str) -> None:
    """Files that the newest releases wrote: nothing is missing, nothing is elsewhere."""
    own: Case = cases()[name]
    if made := rewritten(
        own.config, {tensor: header(tensor, dtype, tuple(shape)) for tensor, (dtype, shape, _) in own.tensors.items()}
    ):
        dialect, again = made
        older = name.startswith(("zlab-gen1", "modelopt-0.47"))
        check_against(name, own.config, again, OLDER[dialect] if older else set())


@pytest.mark.parametrize("name", RELEASES)
def test_public_releases(name: str) -> None:
    data = case(name)
    stored = {tensor: header(tensor, dtype, tuple(shape)) for tensor, dtype, shape in tensors(data["tensors"])}
    if "d2t" in stored or data.get("drafter_block_size"):
        return
    if made := rewritten(data["config"], stored):
        dialect, again = made
        check_against(name, data["config"], again, OLDER[dialect] | APART.get(name, set()))


def test_the_file(tmp_path: Path) -> None:
    for name in WRITERS:
        family = next(iter(FAMILIES[name]))
        config = replace(PLAIN, variant=next(v for v in VARIANTS.values() if v.family == family))
        path = write_config(tmp_path, config, WRITERS[name], 8)
        assert path.name == "config.json" and json.loads(path.read_text()) == config_json(config, WRITERS[name], 8)
