"""The commands and the samples in the GPU builds of the runtimes, on the stand-in device."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftsmith.cuda_runtime import ARCHITECTURES, LIBRARIES
from tests.cuda.environment import environment
from tests.cuda.libraries import IMPORTERS, run
from tests.cuda.tools import run_tool
from tests.faults.trying import PAIR
from tests.runtime import export
from tests.test_doctor import changed, old_gates

DOCTOR = ("-m", "draftsmith.cli", "doctor")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed export with a drafter."""
    folder = tmp_path_factory.mktemp("tools") / "packed"
    options = (f"drafter_path={PAIR / 'dflash2'}", "context_length=1024")
    return export(PAIR / "target", folder, *options, precision="bf16", provider="cuda")


def importers() -> list[Path]:
    site = next(environment().python.parent.parent.glob("lib/python3*/site-packages"))
    return [site / path for path in IMPORTERS]


def test_the_libraries_that_the_builds_need() -> None:
    """The table has what their own headers name, and tells which only genai needs."""
    needed = [set(re.findall(r"NEEDED.*\[(libcu\w+\.so\.\d+)\]", run("readelf", "-d", path))) for path in importers()]
    onnxruntime, genai = (libraries - {"libcuda.so.1"} for libraries in needed)
    assert {library.name for library in LIBRARIES} == onnxruntime | genai
    assert {library.name for library in LIBRARIES if library.genai_only} == genai - onnxruntime


def machine_code(path: Path) -> Iterator[tuple[int, int]]:
    """Kind (1: PTX, 2: machine code) and architecture of each entry of a library's fat binaries."""
    data = path.read_bytes()
    for found in re.finditer(re.escape(struct.pack("<I", 0xBA55ED50)), data):
        header, size = struct.unpack_from("<HQ", data, found.start() + 6)
        entry, end = found.start() + header, found.start() + header + size
        while entry < end:
            kind, length, payload = struct.unpack_from("<HxxIQ", data, entry)
            yield kind, struct.unpack_from("<I", data, entry + 28)[0]
            entry += length + payload


def test_the_gpus_that_the_builds_have_kernels_for() -> None:
    """Machine code and nothing else; 7.5 is there, too, without bfloat16."""
    expected = {(2, 10 * major + minor) for major, minor in ((7, 5), *ARCHITECTURES)}
    for path in importers():
        assert set(machine_code(path)) == expected


def test_doctor_on_a_machine_with_a_gpu(packed: Path) -> None:
    done = run_tool(*DOCTOR, packed)
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "packages: onnxruntime-gpu 1.31.1, onnxruntime-genai-cuda 0.18.0",
        "CUDA libraries: 5 of 5 found",
        "GPU: stand-in H100, compute capability 9.0",
        "kernel on the GPU: one is run",
        "nodes on the GPU, 0 on the CPU",
        "all is well",
    ):
        assert part in done.stdout
    assert "WRONG" not in done.stdout and done.stdout.count("0 on the CPU") == 2


def test_doctor_without_a_driver_and_libraries(packed: Path) -> None:
    """What the graphs are made of is seen without a GPU."""
    done = run_tool(*DOCTOR, packed, cuda=False)
    assert done.returncode == 1
    assert "There is no NVIDIA driver" in done.stdout and "nvidia-cublas" in done.stdout
    assert "ok       dflash2.onnx: operators, types and attributes are taken" in done.stdout


def test_doctor_on_a_gpu_without_kernels() -> None:
    done = run_tool(*DOCTOR, "--json", capability=100)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["gpus"][0]["compute_capability"] == "10.0"
    assert [item["name"] for item in found["findings"] if item["state"] == "WRONG"] == ["GPU"]


def test_a_kernel_on_a_gpu_without_any() -> None:
    """What the table does not know, the kernel that is run shows."""
    done = run_tool("-m", "draftsmith.doctor.probe", "{}", capability=100)
    assert "NoKernelImageForDevice" in json.loads(done.stdout.splitlines()[-1])["kernel"]


def test_doctor_on_an_export_that_only_a_newer_runtime_takes(packed: Path, tmp_path: Path) -> None:
    done = run_tool(*DOCTOR, changed(packed, tmp_path / "old", old_gates))
    assert done.returncode == 1
    assert 'gate_activation="softplus" (known: none, qwen), in 6 nodes' in done.stdout  # the table
    assert "gate_activation must be one of: none, qwen" in done.stdout  # the runtime itself
    assert "ok       dflash2.onnx" in done.stdout


def test_speculate(packed: Path, tmp_path: Path) -> None:
    """Nothing is computed, so that drafts are worth nothing; but all of it runs, the drafter and the target alone."""
    (tmp_path / "prompts").write_text("one\ntwo\n")
    command = ("-m", "draftsmith.cli", "speculate", packed, "--prompts", tmp_path / "prompts", "--provider", "cuda")
    done = run_tool(*command, "--max-new-tokens", "12", "--baseline")
    assert "Traceback" not in done.stderr
    assert int(re.findall(r"drafts proposed (\d+)", done.stdout)[0]) > 0
    assert "for 2 of 2 prompts" in done.stdout
    unfit = run_tool(*command, cuda=False)
    assert unfit.returncode == 2 and re.match(r"error: \d of CUDA's 5 libraries cannot be loaded", unfit.stderr)


def test_the_engine_sample(packed: Path) -> None:
    done = run_tool(
        "scripts/serve_engine.py", packed, "--max-new-tokens", "8", "--slots", "2", text="one\ntwo\nthree\n"
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^--- (\w+)$", done.stdout, re.MULTILINE) == ["one", "two", "three"]
    assert int(re.findall(r"(\d+) drafts in", done.stdout)[0]) > 0


def test_the_generator_sample(tmp_path: Path) -> None:
    dense = export(PAIR / "target", tmp_path / "dense", "context_length=1024", precision="bf16", provider="cuda")
    done = run_tool("scripts/generate.py", dense, "one", "--max-new-tokens", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("one")
