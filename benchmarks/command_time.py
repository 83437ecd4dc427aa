"""How long --help and mistakes in flags take: python -m benchmarks.command_time [--runs N]

Runs each in a process of its own, some times, and prints the shortest time on the clock and of the processor, with what
Python alone takes to start. The aim is 0.2 s.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from tests.test_command import MISTAKES, SUBCOMMANDS

COMMANDS = [
    ["-c", "pass"],
    *(["-m", "builder", *mistake] for mistake in MISTAKES),
    *(["-m", "draftsmith.cli", name, *mistake] for name, mistakes in SUBCOMMANDS.items() for mistake in mistakes),
]


def seconds(command: list[str]) -> tuple[float, float]:
    """Seconds on the clock, and of the processor, that a command of Python's takes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *command], capture_output=True, check=False)
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of which the shortest counts (default 5)")
    runs = parser.parse_args().runs
    print("clock  processor  command")
    for command in COMMANDS:
        clock, processor = (min(times) for times in zip(*(seconds(command) for _ in range(runs)), strict=True))
        print(f"{clock:5.2f}  {processor:9.2f}  python {' '.join(command)}")


if __name__ == "__main__":
    main()
