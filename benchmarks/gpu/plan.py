"""Which phases there are, with how much time each; together they have less than eight minutes."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.phases import ROOT, Phase
from genai_config.runtime import ENGINE_DRAFTS as DRAFTS

LIMIT_S = 475  # of all phases together
PAIR = Path("tests", "assets", "pair")
TINY = Path("tests", "assets", "tiny-qwen35")
BUILDERS = {"ours": "builder", "theirs": "onnxruntime_genai.models.builder"}


@dataclass(frozen=True)
class Sizes:
    """What is exported and timed.

    Attributes:
        name: For the report.
        layers: Of the 4B shape; 0 takes the tiny checkpoint in its place.
        proved_layers: Of the copy of it that is proved.
        prompt: Tokens of the prompt.
        steps: Steps that are timed.
        warm: Steps before them: the runtime tries kernels out and records graphs.
        taps: The layers whose output the drafter reads.
    """

    name: str
    layers: int
    proved_layers: int
    prompt: int
    steps: int
    warm: int
    taps: tuple[int, ...]

    @staticmethod
    def full() -> Sizes:
        """The 4B shape."""
        return Sizes("4B shape", 32, 8, 512, 160, 40, (1, 2, 3, 5, 6))

    @staticmethod
    def quick() -> Sizes:
        """The tiny checkpoint: only to see that every phase runs."""
        return Sizes("tiny", 0, 0, 40, 6, 6, (1, 3, 5))


def plan(work: Path, python: Path | None, wheels: Path | None, sizes: Sizes) -> Iterator[Phase]:
    """The phases, in order."""
    own = str(python or work / "venv" / "bin" / "python")
    needs: tuple[str, ...] = ()
    if python is None:
        yield Phase("install", (sys.executable, "-m", "benchmarks.gpu.install", str(work / "venv"), *_from(wheels)), 90)
        needs = ("install",)
    module = (own, "-m")
    yield Phase("machine", (*module, "benchmarks.gpu.machine"), 10, needs)
    yield Phase("export the pair", _export(own, "ours", PAIR / "target", PAIR / "dflash2", work / "pair"), 12, needs)
    taps = tuple(tap + 1 for tap in sizes.taps)
    pair = (str(work / "pair"), str(PAIR / "target"), str(PAIR / "dflash2"))
    yield Phase("prove the pair", (*module, "benchmarks.gpu.prove", *pair), 36, ("export the pair",))
    made = [str(value) for value in (work, sizes.layers, sizes.proved_layers, *sizes.taps)]
    yield Phase("checkpoints", (*module, "benchmarks.gpu.checkpoints", *made), 30, needs)
    deep, drafter = work / "target", work / "drafter"
    for builder, seconds in (("ours", 28), ("theirs", 60)):
        command = _export(own, builder, deep, drafter, work / builder, taps)
        yield Phase(f"export {builder}", command, seconds, ("checkpoints",))
    for builder in BUILDERS:
        for graphs in ("on", "off"):
            name, after = f"{builder}, CUDA graphs {graphs}", (f"export {builder}",)
            numbers = [str(n) for n in (sizes.prompt, sizes.steps, sizes.warm)]
            command = (*module, "benchmarks.gpu.engine", str(work / builder), graphs, *numbers)
            yield Phase(f"Engine, {name}", command, 20, after)
    for builder in BUILDERS:
        for graphs in ("off", "on"):
            command = (
                *module,
                "benchmarks.gpu.parts",
                str(work / builder),
                graphs,
                str(sizes.prompt),
                str(sizes.steps),
            )
            yield Phase(f"parts, {builder}, CUDA graphs {graphs}", command, 15, (f"export {builder}",))
    shallow = work / "proved-target"
    yield Phase("export the shape", _export(own, "ours", shallow, drafter, work / "proved"), 12, ("checkpoints",))
    command = (*module, "benchmarks.gpu.prove", str(work / "proved"), str(shallow), str(drafter))
    yield Phase("prove the shape", command, 55, ("export the shape",))


def _from(wheels: Path | None) -> tuple[str, ...]:
    return () if wheels is None else (str(wheels.resolve()),)


def _export(
    python: str, builder: str, target: Path, drafter: Path, out: Path, taps: tuple[int, ...] = ()
) -> tuple[str, ...]:
    """A builder's command. The other one must be told the taps and how many drafts, and exports the MTP layer, too."""
    options = ["use_paged_attention=true", "prune_lm_head=true", f"dflash2_path={drafter}"]
    if builder == "theirs":
        options += [
            f"aux_hidden_state_layers={','.join(map(str, taps))}",
            f"state_update_capacity={DRAFTS}",
            "exclude_mtp=true",
        ]
    arguments = ["-i", str(target), "-o", str(out), "-p", "bf16", "-e", "cuda", "--extra_options", *options]
    return (python, "-m", BUILDERS[builder], *arguments)


def requirements() -> list[str]:
    """What is needed: the package's own dependencies, its extras for CUDA and for the proof."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["cuda"], *extras["verify"]]
