"""Make an environment with all that the check needs: install.py VENV [WHEELS]; or list it: install.py --list

The package itself is not installed: it is run from its folder. From a folder of wheels everything comes as it lies
there; from the network, in the versions that the project's numbers were measured on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.phases import ROOT
from benchmarks.gpu.plan import requirements


def main() -> int:
    """Make it; gives pip's exit status."""
    if sys.argv[1:] == ["--list"]:
        print(*requirements(), sep="\n")
        return 0
    venv, *wheels = sys.argv[1:]
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    source = ["--no-index", "--find-links", wheels[0]] if wheels else ["--constraint", ROOT / "scripts/constraints.txt"]
    pip = [Path(venv, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    return subprocess.run([*pip, *source, *requirements()]).returncode


if __name__ == "__main__":
    sys.exit(main())
