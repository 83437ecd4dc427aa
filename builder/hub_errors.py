"""What goes wrong with the Hub, in the user's terms."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from builder.hub_name import HubName
from onnxkit.errors import ExportError, listed

_LOG_IN = "Set HF_TOKEN to a token that may read it, or run: hf auth login;"
_CONNECT = "Check the network, HF_ENDPOINT and HTTPS_PROXY, and unset HF_HUB_OFFLINE;"


class Asked:
    """What was asked for and by which option, for messages.

    Attributes:
        name: The repository.
        option: The option, such as ``-m`` or ``--extra_options drafter_path``.
    """

    def __init__(self, name: HubName, option: str) -> None:
        self.name, self.option = name, option

    @property
    def where(self) -> str:
        """The option and the name, as they were written."""
        return f"{self.option}{' ' if self.option.split()[-1].startswith('-') else '='}{self.name}"

    @property
    def local(self) -> str:
        """What to do instead."""
        return f"or download it elsewhere and give the folder with {'-i' if self.option == '-m' else self.option}."

    @property
    def folder(self) -> str:
        """What to write where a folder was meant."""
        if self.option == "-m":
            return "For a local folder use -i."
        return f"No folder here has this name; one that is meant as such is written ./{self.name.repository}."


def explained(error: Exception, asked: Asked, names: Sequence[str]) -> ExportError:
    """The error to show.

    Args:
        error: What the Hub's library raised.
        asked: What was asked for.
        names: The files that were to be fetched.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, HFValidationError):
        return ExportError(
            "This cannot be the name of a repository.",
            where=asked.option,
            found=repr(str(asked.name)),
            accepted="owner/name or owner/name@revision, such as Qwen/Qwen3.5-4B",
            fix=f"Correct the name. {asked.folder}",
        )
    if isinstance(error, GatedRepoError):
        return ExportError(
            "The repository is gated.",
            where=asked.where,
            found=first_line(error),
            accepted="a repository that you have been granted access to",
            fix=f"Ask for access on the model's page. {_LOG_IN} {asked.local}",
        )
    if isinstance(error, RevisionNotFoundError):
        return ExportError(
            "The repository has no such revision.",
            where=asked.where,
            found=f"no branch, tag or commit {asked.name.revision or 'main'}",
            accepted="a branch, a tag or a whole commit of the repository",
            fix="Look it up under Files and versions on the model's page, or leave @ and revision out for main.",
        )
    if _status(error) in (401, 403, 404):
        return ExportError(
            "The repository does not exist, or you may not read it.",
            where=asked.where,
            found=first_line(error),
            accepted="a public repository, or a private one with a token that may read it",
            fix=f"Check the name's spelling. {asked.folder} If it is private: {_LOG_IN} {asked.local}",
        )
    if isinstance(error, LocalEntryNotFoundError):
        return ExportError(
            "The Hub cannot be reached, and the cache does not hold the whole checkpoint.",
            where=asked.where,
            found=first_line(error),
            accepted=f"the Hub, or a cached snapshot with\n{listed(names)}",
            fix=f"{'' if asked.option == '-m' else asked.folder + ' '}{_CONNECT} {asked.local}",
        )
    return _failed(error, asked)


def _failed(error: Exception, asked: Asked) -> ExportError:
    """Failures on the way: the disk's, and the network's."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return no_room(asked.where, first_line(error), "room for the checkpoint's weights in the cache")
    if number is not None and isinstance(error, OSError) and error.filename is not None:
        return ExportError(
            "The cache cannot be written to.",
            where=error.filename,
            found=error.strerror,
            accepted="a folder that you may write to",
            fix="Name another with -c or HF_HOME, or mend its permissions.",
        )
    return ExportError(
        "The download failed.",
        where=asked.where,
        found=first_line(error),
        accepted="a download that runs to its end",
        fix=f"Try again; finished files are kept. {_CONNECT} {asked.local}",
    )


def no_room(where: str, found: str, accepted: str) -> ExportError:
    """The error for a disk that is too small."""
    return ExportError(
        "There is not enough room for the download.",
        where=where,
        found=found,
        accepted=accepted,
        fix="Make room, or name a cache on a larger disk with -c or HF_HOME. Finished files are kept.",
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error. Some are wrapped in the news that the cache has nothing in their place."""
    for candidate in (error, error.__cause__):
        status = getattr(getattr(candidate, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def first_line(error: Exception) -> str:
    """An error's message in one line."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
