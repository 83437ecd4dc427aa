"""Names of repositories on the Hub, told apart from folders of this machine."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from onnxkit.errors import ExportError

# owner/name, as the Hub has them; what begins with a dot, a slash or a tilde is a path.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

# A branch, a tag or a commit: it becomes the name of a file in the cache.
_REVISION = re.compile(r"[A-Za-z0-9][\w.+-]*(/[A-Za-z0-9][\w.+-]*)*", re.ASCII)


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub.

    Attributes:
        repository: Its name, such as ``Qwen/Qwen3.5-4B``.
        revision: A branch, a tag or a commit; None for the main branch.
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository

    def at(self, revision: str) -> HubName:
        """The same repository at a revision."""
        return replace(self, revision=revision)


def hub_name(text: str, where: str) -> HubName:
    """The repository that ``owner/name`` or ``owner/name@revision`` names; the Hub's library judges the name.

    Raises:
        ExportError: What follows the @ is no revision.
    """
    repository, at, revision = text.partition("@")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ExportError(
            "This cannot be a revision.",
            where=f"{where} {text}",
            found=repr(revision),
            accepted="owner/name@revision: a branch, a tag or a commit, such as Qwen/Qwen3.5-4B@main",
            fix="Correct what follows the @, or leave it out with the @ for the main branch.",
        )
    return HubName(repository, revision or None)


def expanded(text: str) -> Path:
    """A path with ``~`` at its beginning replaced: a shell does so in ``-o ~/x``, and not in ``drafter_path=~/x``."""
    with suppress(RuntimeError):  # ~name, and nobody of that name: then it is a file's name
        return Path(text).expanduser()
    return Path(text)


def folder_or_hub(text: str, where: str) -> Path | HubName:
    """The folder or repository that a text names. An existing path wins; ``./x``, ``/x``, ``~/x`` are never the Hub's.

    Raises:
        ExportError: It is the name of a repository, and what follows the @ is no revision.
    """
    path = expanded(text)
    if text.startswith(("/", ".", "~")) or path.exists():
        return path
    return hub_name(text, where) if _REPOSITORY.fullmatch(text.partition("@")[0]) else path
