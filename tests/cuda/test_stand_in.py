"""The stand-in device itself: what it does, refuses and logs, and how its environment comes to be."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cuda import environment as environment_module
from tests.cuda.environment import DONE, environment
from tests.cuda.libraries import run
from tests.cuda.log import Counts, Step, read_log, short, steps

PROGRAM = Path(__file__).parent / "program.cc"

# Errors by CUDA's numbers: memory, an invalid kernel, and what a capture cannot hold.
ANSWERS = {
    "malloc": 0,
    "too much": 2,
    "peek": 2,
    "second": 3,
    "cleared": 0,
    "malloc while capturing": 900,
    "wait while capturing": 900,
    "copy while capturing": 906,
    "replay": 0,
    "wait": 0,
    "unknown kernel": 98,
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Step]]]:
    """What the program prints, and its log."""
    work = tmp_path_factory.mktemp("program")
    place = environment()
    include = next(place.python.parent.parent.glob("lib/python3*/site-packages/nvidia/cu13/include"))
    run("g++", "-isystem", include, PROGRAM, "-o", work / "program", place.libraries / "libcudart.so.13")
    variables = {"LD_LIBRARY_PATH": str(place.libraries), "STANDIN_CUDA_LOG": str(work / "log")}
    printed = subprocess.run([work / "program"], env=os.environ | variables, capture_output=True, text=True, check=True)
    yield printed.stdout, steps(read_log(work / "log"))


def test_answers(output: tuple[str, list[Step]]) -> None:
    lines = (line.rsplit(" ", 1) for line in output[0].splitlines())
    assert {what: int(got) for what, got in lines} == ANSWERS


def test_log(output: tuple[str, list[Step]]) -> None:
    counts = {step.name: step.counts() for step in output[1]}
    assert counts["copies"] == Counts(copies=3, memsets=1, synchronisations=1)
    assert counts["capture"] == Counts(refusals=3)  # the memset is recorded, not done
    assert counts["replay"] == Counts(graphs=1, synchronisations=1)
    assert counts["end"] == Counts(refusals=1)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("Generators::cuda::(anonymous namespace)::Gather(int const*, int)", "Gather"),
        ("void onnxruntime::cuda::_Split<long>(onnxruntime::cuda::TArray<long, 4>, int)", "_Split"),
        (
            "void a::_Unary<a::BFloat16, float, a::OP_Cast<a::BFloat16, float>, 256>(int)",
            "_Unary: Cast BFloat16 to float",
        ),
        ("void a::_Binary<float, a::OP_Mul<float, float, float> >(float const*)", "_Binary: Mul"),
    ],
)
def test_names_of_kernels(kernel: str, name: str) -> None:
    assert short(kernel) == name


def fill_slowly(folder: Path) -> None:
    """Fill the folder as only one process at a time may."""
    folder.mkdir(parents=True)  # fails where it is there
    (folder / "made").write_text(str(os.getpid()))


def make_in(cache: Path) -> None:
    with environment_module._locked(cache / "lock"):
        environment_module._make(cache / "made-once", fill_slowly)


def test_two_at_once_make_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=make_in, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4


def test_what_a_killed_run_left_is_made_anew(tmp_path: Path) -> None:
    left = tmp_path / "made-once"
    left.mkdir()
    (left / "half").touch()
    make_in(tmp_path)
    assert sorted(path.name for path in left.iterdir()) == sorted([DONE, "made"])
    before = (left / "made").stat().st_mtime_ns
    make_in(tmp_path)
    assert (left / "made").stat().st_mtime_ns == before


def test_a_changed_source_is_another_folder(tmp_path: Path) -> None:
    source = tmp_path / "source.cc"
    source.write_text("int a;")
    before = environment_module._digest(source)
    source.write_text("int b;")
    assert environment_module._digest(source) != before
