"""Operating systems: what works only on Linux says so on the others by name, before anything else fails."""

from __future__ import annotations

import sys

from onnxkit.errors import ExportError

LINUX = "linux"
_NAMES = {LINUX: "Linux", "darwin": "macOS", "win32": "Windows"}


def system() -> str:
    """What people call this operating system."""
    return _NAMES.get(sys.platform, sys.platform)


def on_linux() -> bool:
    """Whether this is Linux."""
    return sys.platform == LINUX


def needs_locks(command: str) -> None:
    """Check that folders can be locked and replaced in one step, which requires a POSIX system.

    Args:
        command: What needs it, for the message.

    Raises:
        ExportError: This is Windows.
    """
    if sys.platform == "win32":
        raise ExportError(
            f"{command} does not run on Windows.",
            where="this machine",
            found="Windows, which has no flock and cannot open a folder",
            accepted="Linux; macOS also has what is needed, but nobody has tried it",
            fix="Run it in WSL 2 or in a Linux container. The export that it makes can be copied to Windows.",
        )


def needs_linux(what: str, why: str, fix: str) -> None:
    """Check that this is Linux.

    Args:
        what: What runs only on Linux, as the start of a sentence.
        why: What it needs from Linux.
        fix: What to do on other systems.

    Raises:
        ExportError: This is another system.
    """
    if not on_linux():
        raise ExportError(
            f"{what} on Linux only.", where="this machine", found=system(), accepted=f"Linux: {why}", fix=fix
        )
