"""The package outside its repository: a copy of the tree, a new environment, a wheel in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent


def copy_of_the_repository(folder: Path) -> Path:
    """What git would commit (or all of a tree that is not git's), in a folder that does not exist yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name]
    if listed.returncode:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def lend_packages(environment: Path) -> None:
    """Let a virtual environment see the packages of this one, behind its own, but not an editable install of ours.

    The reason is time: torch alone takes a minute to install. Python reads no ``.pth`` file of a folder that a ``.pth``
    file names, and an editable install is one.
    """
    (own,) = environment.glob("lib/python3*/site-packages")
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")


def new_environment(folder: Path) -> Path:
    """A virtual environment without this package; gives its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    lend_packages(folder)
    return folder / "bin" / "python"


def plain_environment() -> dict[str, str]:
    """The variables of this process, but for those that say where Python finds packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def run(command: list[object], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command outside the repository; what it prints goes into one text."""
    out, both = subprocess.PIPE, subprocess.STDOUT
    words = [str(part) for part in command]
    environment = plain_environment() | variables
    return subprocess.run(words, cwd=cwd, env=environment, text=True, timeout=300, stdout=out, stderr=both)


def checked(command: list[object], cwd: Path, **variables: str) -> str:
    """The same, of a command that must not fail; gives what it prints."""
    done = run(command, cwd, **variables)
    assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout
