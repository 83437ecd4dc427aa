"""What a command says while it works: a bar on a terminal, a line now and then elsewhere, each step on request."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

from onnxkit.sizes import readable
from onnxkit.text import clipped, escaped

# Seconds between two lines if stderr is not a terminal, as in a CI job.
PERIOD = 10.0

# Tensors of up to this many bytes are not reported.
_SMALL = 256

# The packages whose steps are reported.
_PACKAGES = ("onnxkit", "drafters", "genai_config", "builder", "draftsmith")


class Loudness(Enum):
    """How much is said besides errors and results."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


_loudness: ContextVar[Loudness] = ContextVar("loudness", default=Loudness.NORMAL)


@contextmanager
def loudness(level: Loudness) -> Iterator[None]:
    """Within it, this much is said. Steps are log records of level INFO, which a program can also get without this."""
    token = _loudness.set(level)
    handler = _Steps() if level is Loudness.VERBOSE else None
    loggers = [logging.getLogger(name) for name in _PACKAGES] if handler else []
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)  # type: ignore[arg-type]
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.removeHandler(handler)  # type: ignore[arg-type]
            logger.setLevel(was)
        _loudness.reset(token)


@contextmanager
def progress_bar(total: int | None, title: str) -> Iterator[Callable[[int], object]]:
    """Progress in bytes on stderr; yields a function that takes the number of bytes just done.

    On a terminal it is a bar, which vanishes at the end. Elsewhere it is a line every ten seconds, so that the log of a
    CI job grows while the job runs and holds nothing that moves a cursor.

    Args:
        total: The total number of bytes; None if it is not known.
        title: What is being done.
    """
    if _loudness.get() is Loudness.QUIET:
        yield lambda count: None
    elif sys.stderr.isatty():
        from tqdm import tqdm  # imported here, so that --help need not wait for it

        with tqdm(total=total, desc=title, unit="B", unit_scale=True, leave=False) as bar:
            yield bar.update
    else:
        with _Lines(total, title) as lines:
            yield lines.add


class _Lines:
    """Progress as lines. A thread prints them: one tensor, or a slow network, can take longer than a period."""

    def __init__(self, total: int | None, title: str) -> None:
        self._total, self._title = total, title
        self._done = self._printed = 0
        self._start = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._printed and error is None:
            _tell(f"{self._title}: {readable(self._done)} in {self._seconds():.0f} s")

    def add(self, count: int) -> None:
        """Note that ``count`` more bytes are done."""
        with self._lock:
            self._done += count

    def _run(self) -> None:
        while not self._ended.wait(PERIOD):
            self._printed += 1
            _tell(self._line())

    def _line(self) -> str:
        rate = self._done / max(self._seconds(), 1e-9)
        parts = [readable(self._done)]
        if self._total:
            left = f"about {max(self._total - self._done, 0) / rate:.0f} s left" if rate else "nothing yet"
            parts = [
                f"{min(self._done / self._total, 1):.0%}",
                f"{readable(self._done)} of {readable(self._total)}",
                left,
            ]
        return f"{self._title}: {', '.join([*parts, f'{readable(int(rate))}/s'])}"

    def _seconds(self) -> float:
        return time.monotonic() - self._start


def _tell(line: str) -> None:
    """A line on stderr, in a single write: other threads write there as well."""
    sys.stderr.write(f"{line}\n")


class _Steps(logging.Handler):
    """Steps on stderr, each with the seconds since the start, above the bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one step."""
        from tqdm import tqdm

        text = clipped(escaped(record.getMessage()))
        with tqdm.external_write_mode(file=sys.stderr):
            _tell(f"{record.relativeCreated / 1000:8.2f} s  {text}")


class Groups:
    """Reports tensors as they are processed, layer by layer: a step for each layer, and for each tensor outside any.

    Args:
        log: Called with a step's text.
        sizes: The bytes of each tensor that will come, by name. Small constants are not reported.
    """

    def __init__(self, log: Callable[[str], object], sizes: Mapping[str, int]) -> None:
        self._log = log
        self._sizes = sizes = {name: size for name, size in sizes.items() if size > _SMALL}
        self._left = Counter(map(_layer, sizes))
        self._counts = dict(self._left)
        self._bytes: Counter[str] = Counter()
        for name, size in sizes.items():
            self._bytes[_layer(name)] += size

    def began(self, name: str | None) -> None:
        """Note that the work on a tensor begins; names not among ``sizes`` are ignored."""
        if name not in self._sizes:
            return
        group = _layer(name)
        self._left[group] -= 1
        if not self._left[group]:
            count = self._counts[group]
            self._log(f"  {group}: {f'{count} tensors, ' if count > 1 else ''}{readable(self._bytes[group])}")


def _layer(name: str) -> str:
    """A tensor's layer: its name up to the first number in it; the whole name if it has no number."""
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    return name if at is None else ".".join(parts[: at + 1])
