"""Checkpoints from the Hugging Face Hub: only the files that an export reads, in the Hub's own cache, never code."""

from __future__ import annotations

import errno
import glob
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

from builder.tokenizer import FILES, GENERATION_CONFIG, TOKENIZER_CONFIG
from onnxkit.errors import ExportError, listed
from onnxkit.json_object import JsonObject, load_json
from onnxkit.weights.checkpoint import INDEX_FILE, SINGLE_FILE

_CONFIG = "config.json"
_NOT_WEIGHTS = (_CONFIG, INDEX_FILE, GENERATION_CONFIG, TOKENIZER_CONFIG, *FILES)

# Of what names of weights may be made: a name is shown while it is loaded, and becomes a file.
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")

_LOCAL = "or download it elsewhere and give the folder with -i."
_LOG_IN = "Set HF_TOKEN to a token that may read it, or run: hf auth login;"
_CONNECT = "Check the network, HF_ENDPOINT and HTTPS_PROXY, and unset HF_HUB_OFFLINE;"


def fetch(model: str, cache_dir: Path | None = None) -> Path:
    """Get a checkpoint into the cache; what is there already is not loaded again.

    Where the Hub cannot be reached, or ``HF_HUB_OFFLINE`` is set, the cached snapshot is taken if it is complete.

    Args:
        model: The repository, such as ``Qwen/Qwen3.5-4B``.
        cache_dir: The cache's folder; None for that of ``huggingface_hub``.

    Returns:
        The snapshot's folder, whose files are links into the cache.

    Raises:
        ExportError: There is no such repository, it may not be read, it is no checkpoint, or it cannot be loaded.
    """
    folder = _snapshot(model, cache_dir, _NOT_WEIGHTS)
    _check_present(model, folder, [_CONFIG])
    weights = _weight_files(folder)
    if _missing(folder, weights):
        # Not by the commit: without a network, huggingface_hub would then try for half a minute, cache or no cache.
        if _snapshot(model, cache_dir, weights) != folder:
            return fetch(model, cache_dir)  # there was a new release in between
        _check_present(model, folder, weights)
    return folder


def _weight_files(folder: Path) -> list[str]:
    """The files that the index names, or the single file where there is no index.

    The index is a stranger's: a name in it becomes a request, so nothing but weights beside it may be asked for.
    """
    if not (folder / INDEX_FILE).is_file():
        return [SINGLE_FILE]
    names = JsonObject(load_json(folder / INDEX_FILE), INDEX_FILE).section("weight_map").data.values()
    for name in names:
        if not isinstance(name, str) or not name.endswith(".safetensors") or not set(name) <= _PLAIN:
            raise ExportError(
                "The index names a file that is not fetched.",
                where=f"{folder / INDEX_FILE}: weight_map",
                found=repr(name),
                accepted="names of safetensors files beside the index: letters, digits, dots, dashes, underscores",
                fix="Name a repository that you trust, with its weights as safetensors.",
            )
    return sorted(set(names))


def _missing(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def _check_present(model: str, folder: Path, names: Iterable[str]) -> None:
    """Refuse a snapshot without files that it must have: none such in the repository, or a cached part of it."""
    missing = _missing(folder, names)
    if missing:
        raise ExportError(
            "The repository, or the part of it that is cached, lacks files that an export needs.",
            where=f"-m {model}, snapshot {folder}",
            found=f"no file {listed(missing)}",
            accepted=f"{_CONFIG}, and {SINGLE_FILE} or every file that {INDEX_FILE} names",
            fix="If you are offline, connect and unset HF_HUB_OFFLINE, to finish the download. "
            "If you are not, name the repository that holds the weights as safetensors.",
        )


def _snapshot(model: str, cache_dir: Path | None, names: Sequence[str]) -> Path:
    """The snapshot's folder with the files of these very names, as far as the repository has them."""
    # Imported here: only who names a repository need wait for it. HTTPError is that of the HTTP library, which differs
    # between versions.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]

    patterns = [glob.escape(name) for name in names]
    try:
        return Path(snapshot_download(model, cache_dir=cache_dir, allow_patterns=patterns))
    except (
        HFValidationError,
        HTTPError,
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError: the Xet client's, of any kind
        raise _explained(error, model, names) from error


def _explained(error: Exception, model: str, names: Sequence[str]) -> ExportError:
    """What went wrong, in the user's terms."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError

    if isinstance(error, HFValidationError):
        return ExportError(
            "This cannot be the name of a repository.",
            where="-m",
            found=repr(model),
            accepted="owner/name, such as Qwen/Qwen3.5-4B",
            fix="Correct the name. For a local folder use -i.",
        )
    if isinstance(error, GatedRepoError):
        return ExportError(
            "The repository is gated.",
            where=f"-m {model}",
            found=_first_line(error),
            accepted="a repository that you have been granted access to",
            fix=f"Ask for access on the model's page. {_LOG_IN} {_LOCAL}",
        )
    if _status(error) in (401, 403, 404):
        return ExportError(
            "The repository does not exist, or you may not read it.",
            where=f"-m {model}",
            found=_first_line(error),
            accepted="a public repository, or a private one with a token that may read it",
            fix=f"Check the name's spelling. If it is private: {_LOG_IN} {_LOCAL}",
        )
    if isinstance(error, LocalEntryNotFoundError):
        return ExportError(
            "The Hub cannot be reached, and the cache does not hold the whole checkpoint.",
            where=f"-m {model}",
            found=_first_line(error),
            accepted=f"the Hub, or a cached snapshot with\n{listed(names)}",
            fix=f"{_CONNECT} {_LOCAL}",
        )
    return _failed(error, model)


def _failed(error: Exception, model: str) -> ExportError:
    """Failures on the way: the disk's, and the network's."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return ExportError(
            "There is not enough room for the download.",
            where=f"-m {model}",
            found=_first_line(error),
            accepted="room for the checkpoint's weights in the cache",
            fix="Make room, or name a cache on a larger disk with -c or HF_HOME. Finished files are kept.",
        )
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
        where=f"-m {model}",
        found=_first_line(error),
        accepted="a download that runs to its end",
        fix=f"Try again; finished files are kept. {_CONNECT} {_LOCAL}",
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error. Some are wrapped in the news that the cache has nothing in their place."""
    for candidate in (error, error.__cause__):
        status = getattr(getattr(candidate, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
