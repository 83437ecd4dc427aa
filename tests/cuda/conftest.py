"""Says how much of the stand-in device's runs a run of the suite had."""

from __future__ import annotations

import pytest

from tests.cuda.nightly import RUNS, TOTAL


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell that there is more for the night, if there is."""
    if len(RUNS) < TOTAL:
        left = TOTAL - len(RUNS)
        terminalreporter.write_line(
            f"stand-in CUDA device: {left} of {TOTAL} runs, and the other builder, are for the night (NIGHTLY=1)"
        )
