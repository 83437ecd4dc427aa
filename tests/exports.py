"""Every kind of export there is, and the hashes of its files, to be compared with those of another run.

Both layouts, every precision, tied and untied tables, taps, hidden states, each kind of drafter in each producer's
words, windows, YaRN.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.checkpoints import TINY, text_only, text_only_names, tie, variant, without_head, yarn
from tests.cuda.variants import VARIANTS, Maker, Variant

REPOSITORY = Path(__file__).parent.parent
Hashes = dict[str, dict[str, str]]  # of every file of every export

# Runs in a process of its own, in the tree that is looked at: reads {name: arguments} and prints {name: {file: hash}}.
DRIVER = """
import hashlib, json, shutil, sys
from pathlib import Path
from builder.cli import main

found = {}
for name, (out, arguments) in json.load(sys.stdin).items():
    shutil.rmtree(out, ignore_errors=True)
    stdout, sys.stdout = sys.stdout, sys.stderr
    status = main([*arguments, "-o", out])
    sys.stdout = stdout
    files = sorted(path for path in Path(out).rglob("*") if path.is_file()) if status == 0 else []
    found[name] = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Dense:
    """An export for the dense layout, which the variants for the stand-in device are not."""

    name: str
    precision: str
    provider: str
    options: tuple[str, ...] = ()
    target: Maker | None = None

    def __str__(self) -> str:
        return f"{self.name}, {self.precision} for {self.provider}"


def dense() -> Iterator[Dense]:
    """The dense layout in every precision, for both providers."""
    changed = {
        "plain": None,
        "tied": lambda folder: variant(folder, config=tie, tensors=without_head),
        "text only": lambda folder: variant(folder, config=text_only, tensors=text_only_names),
        "YaRN": lambda folder: variant(folder, config=yarn),
        "in shards": lambda folder: variant(folder, shards=3),
    }
    for (name, target), (precision, provider) in product(changed.items(), PAIRS):
        yield Dense(f"dense, {name}", precision, provider, target=target)
    for (name, options), (precision, provider) in product(OPTIONS.items(), PAIRS):
        yield Dense(f"dense, {name}", precision, provider, options)


PAIRS = [("fp32", "cpu"), ("fp16", "cuda"), ("bf16", "cuda")]
OPTIONS = {
    "hidden states": ("include_hidden_states=true",),
    "taps": ("aux_hidden_state_layers=2,4,6",),
    "the last layer's tap": ("aux_hidden_state_layers=8", "last_tap=normed"),
    "all logits": ("prune_lm_head=false",),
    "a short context": ("context_length=512",),
    "infinite weights allowed": ("allow_nonfinite=true",),
}


Export = Variant | Dense
Jobs = dict[str, tuple[str, list[str]]]  # by an export's name, its folder and the command's arguments


def every_export() -> list[Export]:
    """All of them."""
    return [*VARIANTS, *dense()]


def prepare(work: Path, exports: Iterable[Export]) -> Jobs:
    """Make the checkpoints."""
    jobs: Jobs = {}
    for export in exports:
        folder = work / f"{len(jobs):03}"
        folder.mkdir()
        target = export.target(folder / "target") if export.target else TINY
        options = list(export.options)
        if isinstance(export, Variant):
            options.insert(0, "use_paged_attention=true")
            options += [f"drafter_path={export.drafter(folder / 'drafter')}"] if export.drafter else []
        provider = "cuda" if isinstance(export, Variant) else export.provider
        arguments = ["-i", str(target), "-p", export.precision, "-e", provider]
        arguments += ["--extra_options", *options] if options else []
        jobs[str(export)] = (str(folder / "out"), arguments)
    return jobs


def hashes(tree: Path, jobs: Jobs, seed: str = "random") -> Hashes:
    """Make all exports with the code of a tree, in a new process.

    Args:
        tree: A folder that holds this repository at any revision.
        jobs: The exports.
        seed: ``PYTHONHASHSEED``, by which Python orders sets.

    Raises:
        RuntimeError: The process failed.
    """
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=tree,
        env=os.environ | {"PYTHONHASHSEED": seed},
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{tree}:\n{done.stderr}")
    found: Hashes = json.loads(done.stdout)
    return found
