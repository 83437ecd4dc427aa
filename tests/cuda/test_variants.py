"""Every kind of export on the stand-in device: it loads, all of it on the GPU, and decodes in the Engine with drafts.

Numbers and time cannot be seen so; what can is what the runtime's own host code and its operators' checks say.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.log import Record
from tests.cuda.stand_in import TOKENS, Device, Run
from tests.cuda.variants import VARIANTS, Variant

CAPABILITIES = (80, 90, 120)
EVERY = 11  # of all variants in a sample; prime, so that a sample is no single column of the lists they come from


def _runs() -> Iterator[Any]:
    """Each variant on each device. In every run is one variant in so many, on one device each."""
    for number, variant in enumerate(VARIANTS):
        for place, capability in enumerate(CAPABILITIES):
            kept = number % EVERY == 0 and number // EVERY % len(CAPABILITIES) == place
            marks = () if kept else pytest.mark.nightly
            yield pytest.param(variant, variant, capability, id=f"{variant}, sm{capability}", marks=marks)


RUNS = list(_runs())

# Every how manieth token differs from its draft: some rounds accept all drafts, some a part, some none.
SOMETIMES = 11
CUDA_PROVIDER = "libonnxruntime_providers_cuda.so"


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The export of a variant, for all devices it is run on."""
    variant: Variant = request.param
    work = tmp_path_factory.mktemp("variant")
    yield variant.export(work)
    shutil.rmtree(work)


def host_copies(run: Run) -> list[Record]:
    """What onnxruntime copies back to the host while it decodes, as it does for a node that is not on the GPU."""
    copies = [
        record for step in run.steps if "load" not in step.name for record in step.records if record["op"] == "copy"
    ]
    return [copy for copy in copies if copy["to"] != "device" and copy["library"] == CUDA_PROVIDER]


def within_schemas(said: dict[str, str]) -> bool:
    """Whether the CPU provider refuses a graph for want of a kernel alone: it knows all operators, types, attributes.

    A float16 graph it changes before: it casts around operators that it has in float32 only, and with that it breaks
    the types of PagedAttention itself.
    """
    return said["error"] == "NotImplemented" or "InsertedPrecisionFreeCast" in said["message"]


@pytest.mark.parametrize(("folder", "variant", "capability"), RUNS, indirect=["folder"])
def test_runs(folder: Path, variant: Variant, capability: int) -> None:
    device = Device(capability, reject=SOMETIMES)
    run = device.everything(folder)
    assert all(map(within_schemas, run.result["cpu"].values())), run.result["cpu"]
    assert len(run.result["graphs"]) == 1 + variant.drafts
    assert run.result["tokens"] == [TOKENS, TOKENS]
    assert (run.result["drafts"] > 0) == variant.drafts
    assert not run.refusals
    assert not host_copies(run)
    assert any(record["op"] == "graph launch" for record in run.records), "CUDA graphs are on by default"
    if variant.drafts:
        replays = [record for record in run.records if "ReplayGatedDeltaNet" in record.get("name", "")]
        assert replays, "a rejected draft must be taken out of the linear layers' states"


@pytest.mark.parametrize(("folder", "variant"), [RUNS[0].values[:2]], indirect=["folder"], ids=["first"])
def test_a_gpu_without_kernels(folder: Path, variant: Variant) -> None:
    """The wheel has no code for sm100: the stand-in sees what a kernel was compiled for."""
    assert 100 not in CAPABILITIES
    with pytest.raises(Exception, match="cudaErrorNoKernelImageForDevice"):
        Device(100).graphs(folder)
