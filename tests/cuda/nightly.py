"""Which runs on the stand-in device the suite has: a sample, or with NIGHTLY=1 in the environment all."""

from __future__ import annotations

import os

import pytest

from tests.cuda.variants import VARIANTS, Variant

CAPABILITIES = (80, 90, 120)
NIGHTLY = os.environ.get("NIGHTLY") == "1"
EVERY = 11  # of all variants in a sample; prime, so that a sample is no single column of the lists they come from


def _sampled(number: int, place: int) -> bool:
    """Whether a run of a variant on one of the devices is in the sample: one variant in so many, on one device each."""
    return number % EVERY == 0 and number // EVERY % len(CAPABILITIES) == place


def _runs() -> tuple[list[tuple[Variant, int]], int]:
    every = [
        (variant, capability, _sampled(number, place))
        for number, variant in enumerate(VARIANTS)
        for place, capability in enumerate(CAPABILITIES)
    ]
    chosen = [(variant, capability) for variant, capability, sampled in every if sampled or NIGHTLY]
    return chosen, len(every)


_CHOSEN, TOTAL = _runs()
RUNS = [pytest.param(variant, variant, capability, id=f"{variant}, sm{capability}") for variant, capability in _CHOSEN]
