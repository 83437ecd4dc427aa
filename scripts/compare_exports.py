"""Show that two revisions write the same exports, byte for byte: python -m scripts.compare_exports REVISION

Every kind of export is made twice, by this working tree and by another revision: both layouts, every precision, tied
and untied tables, taps, hidden states, each kind of drafter in each producer's words, windows, YaRN. What differs is
printed, file by file, and the exit status is 1. Needs the extras "verify" and "dev", and git.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.checkpoints import TINY, text_only, text_only_names, tie, variant, without_head, yarn
from tests.cuda.variants import VARIANTS, Maker, Variant

REPOSITORY = Path(__file__).parent.parent
Hashes = dict[str, dict[str, str]]  # of every file of every export

# Runs in the tree that is looked at: reads {name: arguments} and prints {name: {file: hash}}.
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


def main() -> int:
    """Compare; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a revision of this repository, or a folder that holds its tree")
    parser.add_argument("-k", dest="part", default="", help="only exports whose name has this in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        jobs = prepare(Path(work), options.part)
        print(f"{len(jobs)} exports", flush=True)
        here = hashes(REPOSITORY, jobs)
        if Path(options.revision).is_dir():
            return compare(hashes(Path(options.revision), jobs), here)
        tree = Path(work) / "tree"
        run = ["git", "-C", str(REPOSITORY), "worktree"]
        subprocess.run([*run, "add", "--quiet", "--detach", str(tree), options.revision], check=True)
        try:
            return compare(hashes(tree, jobs), here)
        finally:
            subprocess.run([*run, "remove", "--force", str(tree)], check=True)


def prepare(work: Path, part: str) -> dict[str, tuple[str, list[str]]]:
    """Make the checkpoints; by the name of each export, its folder and the command's arguments."""
    jobs: dict[str, tuple[str, list[str]]] = {}
    packed = ("use_paged_attention=true",)
    exports: list[tuple[Variant | Dense, str, tuple[str, ...]]] = [(v, "cuda", packed + v.options) for v in VARIANTS]
    exports += [(d, d.provider, d.options) for d in dense()]
    for export, provider, extra in exports:
        name = str(export)
        if part not in name:
            continue
        folder = work / f"{len(jobs):03}"
        folder.mkdir()
        target = export.target(folder / "target") if export.target else TINY
        drafter = getattr(export, "drafter", None)
        extra = (*extra, f"drafter_path={drafter(folder / 'drafter')}") if drafter else extra
        arguments = ["-i", str(target), "-p", export.precision, "-e", provider]
        jobs[name] = (str(folder / "out"), [*arguments, *(["--extra_options", *extra] if extra else [])])
    return jobs


def hashes(tree: Path, jobs: dict[str, tuple[str, list[str]]]) -> Hashes:
    """Make all exports with the code of a tree."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=tree,
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{tree}:\n{done.stderr}")
    return json.loads(done.stdout)


def compare(before: Hashes, here: Hashes) -> int:
    """Print what differs."""
    status, files = 0, 0
    for name, now in here.items():
        then = before[name]
        files += len(now)
        different = sorted(file for file in then.keys() | now.keys() if then.get(file) != now.get(file))
        if different or not now:
            status = 1
            print(f"{name}: {', '.join(different) or 'not exported by either'}")
    same = "all the same" if not status else "not all the same"
    print(f"{len(here)} exports, {files} files: {same}")
    return status


if __name__ == "__main__":
    sys.exit(main())
