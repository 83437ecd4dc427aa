"""Show that two revisions write the same exports, byte for byte: python -m scripts.compare_exports REVISION

Every kind of export is made twice, by this working tree and by another revision: both layouts, every precision, tied
and untied tables, taps, hidden states, each kind of drafter in each producer's words, windows, YaRN. What differs is
printed, file by file, and the exit status is 1. Needs the extras "verify" and "dev", and git.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.exports import REPOSITORY, Hashes, every_export, hashes, prepare


def main() -> int:
    """Compare; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a revision of this repository, or a folder that holds its tree")
    parser.add_argument("-k", dest="part", default="", help="only exports whose name has this in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        jobs = prepare(Path(work), [export for export in every_export() if options.part in str(export)])
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
