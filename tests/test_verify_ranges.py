"""What verify says of magnitudes beyond a type of 16 bits, and of contexts too short for its runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draftsmith.verify.checks import Results, Verdict
from draftsmith.verify.folder import open_export
from draftsmith.verify.run import prove
from draftsmith.verify.target import chunks
from tests.checkpoints import TINY
from tests.nightly import sampled
from tests.runtime import export
from tests.verifying import DFLASH2, DSPARK, TARGET, named, proof


def louder(folder: Path, factor: float) -> Path:
    """The bundled target with residual streams that are larger by a factor, which the norms take out again."""
    shutil.copytree(TINY, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("mlp.down_proj.weight", "out_proj.weight", "o_proj.weight")) and "layers" in name:
            tensors[name] = (tensor.astype(np.float32) * factor).astype(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("precision", "verdict"), sampled([("fp16", Verdict.FAILED), ("bf16", Verdict.PASSED)], every=2)
)
def test_values_beyond_half_precision(tmp_path: Path, precision: str, verdict: Verdict) -> None:
    target = louder(tmp_path / "t", 4e5)
    out = export(target, tmp_path / "out", "use_paged_attention=true", precision=precision, provider="cuda")
    results = proof(out, target, run=True)
    check = named(results, "ranges")
    assert check.verdict is verdict and check.error is not None and check.error > 65504
    assert named(results, "logits").verdict is Verdict.PASSED  # in float32 it computes what it should
    places = [place for place, _ in results.figures["ranges"]]
    assert places == ["embedding", *(f"layer {i}" for i in range(8)), "head"]


def test_ranges_are_the_largest_values(tmp_path: Path) -> None:
    """Against transformers: no stream is larger than what the layer that it leaves is said to hold."""
    out = export(TINY, tmp_path / "out")
    results = Results(lambda check: None)
    opened = open_export(out)
    from draftsmith.verify.sources import open_target
    from draftsmith.verify.target import random_ids

    target = open_target(TINY, opened)
    prove(opened, target, None, results)
    ranges = dict(results.figures["ranges"])
    streams = target.expected(random_ids(target.config.vocab_size, 1, 80)).streams
    for layer, stream in enumerate(streams[1:-1]):  # the last one is the final norm's output
        assert float(np.abs(stream).max()) <= ranges[f"layer {layer}"] * (1 + 1e-5)
    assert np.isclose(float(np.abs(streams[0]).max()), ranges["embedding"], rtol=1e-5)


CONTEXTS = [(kind, context) for kind in ("dense", "packed", "dflash2", "dspark") for context in (1, 5, 16, 64)]


@pytest.mark.parametrize(("kind", "context"), sampled(CONTEXTS, every=5))  # one of each kind, each length once
def test_short_contexts(tmp_path: Path, kind: str, context: int) -> None:
    options = [f"context_length={context}"] + ["use_paged_attention=true"] * (kind == "packed")
    source = {"dflash2": DFLASH2, "dspark": DSPARK}.get(kind)
    options += [f"drafter_path={source}"] if source else []
    precision, provider = ("fp32", "cpu") if kind == "dense" else ("bf16", "cuda")
    out = export(TARGET, tmp_path / "out", *options, precision=precision, provider=provider)
    results = proof(out, TARGET, source, run=True)
    assert not results.failed
    short = context < 2 or (source is not None and context < 16)
    assert results.verdict is (Verdict.INCOMPLETE if short else Verdict.PASSED)


@pytest.mark.parametrize("length", range(1, 30))
def test_chunks(length: int) -> None:
    parts = chunks(length, 8)
    assert sum(parts) == length and len(parts) == min(length, 8) and min(parts) > 0
