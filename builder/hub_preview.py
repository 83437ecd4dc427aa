"""A checkpoint on the Hub before its weights are here: headers alone, in files that are as long and hold no weight.

Such a folder opens as any other checkpoint does, so that what is wrong is found by the same checks and told in the same
words, after some hundred kilobytes in the place of gigabytes.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from builder.hub import Snapshot
from builder.hub_errors import first_line
from onnxkit.errors import ExportError
from onnxkit.weights.safetensors_file import MOST_HEADER_BYTES

_log = logging.getLogger(__name__)

# The header's length stands before it, in 8 bytes; most headers fit the first request.
_LENGTH, _FIRST = 8, 128 << 10
_AT_ONCE = 8


def lay_out(snapshot: Snapshot, folder: Path) -> bool:
    """Fill a folder with a snapshot's small files and the headers of its weights; False where they cannot be had.

    That is no error here: what is wrong with the Hub, the download says. Weights that are in the cache are as bare.
    """
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    def header(path: Path) -> None:
        here = snapshot.folder / path.name
        read = _of_file(here) if here.is_file() else _of_hub(snapshot, path.name)
        size = here.stat().st_size if here.is_file() else snapshot.sizes[path.name]
        _write(path, size, read)

    here = [path for path in snapshot.folder.iterdir() if path.is_file()]
    weights = {path.name for path in here if path.name not in snapshot.files} | set(snapshot.missing)
    if not set(snapshot.missing) <= set(snapshot.sizes):
        return False
    try:
        for path in here:
            if path.name in snapshot.files:
                shutil.copyfile(path, folder / path.name)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(header, [folder / name for name in sorted(weights)]))
    except (HTTPError, OSError, RuntimeError) as error:
        _log.info("%s: headers cannot be read before the weights: %s", snapshot.asked.where, first_line(error))
        return False
    _log.info("%s: headers of %d files read, no weights", snapshot.asked.where, len(weights))
    return True


@contextmanager
def told_of(places: dict[Path, Path]) -> Iterator[None]:
    """Within it, errors speak of the snapshots' folders where they would speak of those that stand in for them."""
    try:
        yield
    except ExportError as error:
        for key, value in error.details.items():
            text = str(value)
            for place, folder in places.items():
                text = text.replace(str(place), str(folder))
            error.details[key] = text
        raise


def _write(path: Path, size: int, read: Callable[[int], bytes]) -> None:
    """Write the beginning of a file up to the end of its header, and let the rest be a hole."""
    data = read(min(size, _FIRST))
    length = struct.unpack("<Q", data[:_LENGTH])[0] if len(data) >= _LENGTH else 0
    end = min(_LENGTH + min(length, MOST_HEADER_BYTES), size)
    if end > len(data):
        data = read(end)
    with path.open("wb") as file:
        file.write(data[:end])
        file.truncate(size)


def _of_file(path: Path) -> Callable[[int], bytes]:
    def read(count: int) -> bytes:
        with path.open("rb") as file:
            return file.read(count)

    return read


def _of_hub(snapshot: Snapshot, name: str) -> Callable[[int], bytes]:
    """Reads the first bytes of a file of the Hub.

    The answer is a stream that is left where enough has come: a server that knows no ranges answers with all of it.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
        http_stream_backoff,
    )

    url = hf_hub_url(snapshot.asked.name.repository, name, revision=snapshot.folder.name)
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    settings: dict[str, Any] = {
        "timeout": constants.HF_HUB_DOWNLOAD_TIMEOUT,
        "max_retries": 1,
        "follow_redirects": True,
    }

    def read(count: int) -> bytes:
        if not count:
            return b""
        for ranged in (True, False):
            asked = headers | ({"Range": f"bytes=0-{count - 1}"} if ranged else {})
            with http_stream_backoff("GET", url, headers=asked, **settings) as response:
                if ranged and response.status_code in _REFUSED:
                    continue
                hf_raise_for_status(response)
                data = bytearray()
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) >= count:
                        break
                if len(data) < count:
                    raise OSError(f"{name}: {len(data)} of {count} bytes came")
                return bytes(data[:count])
        raise OSError(f"{name}: the server gives no part of it")

    return read


# How servers refuse a range that is there: not satisfiable, not implemented, a bad request.
_REFUSED = (400, 416, 501)


def folder_in(work: str, role: str) -> Path:
    """A folder within a temporary one, by the path that messages would show."""
    folder = Path(os.path.realpath(work), role)
    folder.mkdir()
    return folder
