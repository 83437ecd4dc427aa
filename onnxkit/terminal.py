"""The standard streams of a command: a terminal obeys nothing from a stranger, and no stream kills a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from onnxkit.errors import ExportError
from onnxkit.text import escaped


class _Stream:
    """A stream in front of a standard one; whatever it does not do itself, the other one does."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Output(_Stream):
    """Standard output. Line breaks are kept; anything else that would control a terminal is shown escaped."""

    def write(self, text: str) -> int:
        """Write text, escaped.

        Raises:
            ExportError: The system does not accept it, for a reason other than that nobody is reading any more.
        """
        with _told():
            encoding = self._stream.encoding or "utf-8"
            shown = escaped(text, keep="\n").encode(encoding, "backslashreplace").decode(encoding)
            self._stream.write(shown)
        return len(text)

    def flush(self) -> None:
        """Write what is still buffered.

        Raises:
            ExportError: As for ``write``.
        """
        with _told():
            self._stream.flush()


class _Errors(_Stream):
    """Standard error. If it cannot be written to, nothing more can be said, and the work goes on."""

    def write(self, text: str) -> int:
        """Write text as it is: a progress bar moves the cursor. Messages are escaped where they are made."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            discard(self._stream)
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Within it, the standard streams exist, and strangers' names and keys can safely be written to them.

    A stream that the caller has closed leads nowhere. Otherwise the next file to be opened would take its number, and
    whatever is printed would end up in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    before = sys.stdout, sys.stderr
    nowhere = [os.fdopen(os.dup(number), "w") if stream is None else None for number, stream in enumerate(before, 1)]
    output, errors = (stream or none for stream, none in zip(before, nowhere, strict=True))
    sys.stdout, sys.stderr = _Output(output), _Errors(errors)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in nowhere:
            if stream is not None:
                stream.close()


def discard(stream: TextIO) -> None:
    """Discard what a stream holds and all that is still to come: otherwise Python would complain once more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has gone, as head does
    except OSError as error:
        raise ExportError(
            "The output cannot be written.",
            where="standard output",
            found=error.strerror or error,
            accepted="a terminal, a pipe, or a file on a file system with room",
            fix="Send the output elsewhere. An export, if one was requested, is complete; only its summary is missing.",
        ) from error
