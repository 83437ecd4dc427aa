"""Reads the stand-in device's log: the operations between two marks, counted by kind."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Counts:
    """What the host asked the device for. What a capture records runs later, in a graph, and is not counted.

    Attributes:
        launches: Kernels.
        products: Matrix products of cuBLAS and cuBLASLt, each of which would be a kernel or two.
        copies: Copies, from and to anywhere.
        memsets: Fills.
        graphs: Launches of captured graphs.
        synchronisations: Waits of the host for a stream, an event or the device.
        refusals: Operations that the device did not take.
    """

    launches: int = 0
    products: int = 0
    copies: int = 0
    memsets: int = 0
    graphs: int = 0
    synchronisations: int = 0
    refusals: int = 0

    @property
    def operations(self) -> int:
        """All that the device executes."""
        return self.launches + self.products + self.copies + self.memsets + self.graphs


KINDS = {
    "launch": "launches",
    "product": "products",
    "copy": "copies",
    "memset": "memsets",
    "graph launch": "graphs",
    "sync": "synchronisations",
    "refused": "refusals",
}


EXECUTED = ("launches", "products", "copies", "memsets", "graphs")
GENAI = "libonnxruntime-genai"  # how the names of its libraries begin


@dataclass(frozen=True)
class Step:
    """What was logged after a mark, up to the next one."""

    name: str
    records: Sequence[Record]

    @property
    def executed(self) -> list[Record]:
        """The records of operations that were not merely recorded for a graph."""
        return [record for record in self.records if not record.get("captured")]

    def counts(self) -> Counts:
        """Operations by kind."""
        return count(self.executed)

    def own(self) -> Counts:
        """Those of them that onnxruntime-genai does by itself, whatever the export: sampling, bookkeeping."""
        return count(record for record in self.executed if str(record.get("library", "")).startswith(GENAI))

    def named(self) -> Counter[str]:
        """Operations by name: kernels without arguments, the runtime's own marked as such."""
        return Counter(_name(record) for record in self.executed if KINDS.get(record["op"]) in EXECUTED)


def _name(record: Record) -> str:
    own = "genai: " if str(record.get("library", "")).startswith(GENAI) else ""
    if record["op"] == "launch":
        return own + short(record["name"])
    if record["op"] == "copy":
        return f"{own}copy, {record['kind']}, {record['from']} to {record['to']}"
    return own + str(record.get("name", record["op"]))


def count(records: Iterable[Record]) -> Counts:
    """Operations by kind."""
    return Counts(**Counter(KINDS[record["op"]] for record in records if record["op"] in KINDS))


def short(kernel: str) -> str:
    """A kernel's name without namespaces and arguments, with the operation of a kernel that is made for many."""
    plain = kernel.replace("(anonymous namespace)::", "")
    name = re.split(r"[<(]", plain.removeprefix("void "), maxsplit=1)[0].rsplit("::", 1)[-1]
    operation = re.search(r"OP_(\w+)<([^<>]*)>", plain)
    if operation is None:
        return name
    types = [kind.strip().rsplit("::", 1)[-1] for kind in operation[2].split(",")]
    return f"{name}: {operation[1]}" + (f" {types[0]} to {types[1]}" if operation[1] == "Cast" else "")


def read_log(path: Path) -> list[Record]:
    """All records, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(records: Iterable[Record]) -> list[Step]:
    """The records after each mark, in order; those before the first one under no name."""
    found: list[tuple[str, list[Record]]] = [("", [])]
    for record in records:
        if record["op"] == "mark":
            found.append((record["name"], []))
        else:
            found[-1][1].append(record)
    return [Step(name, records) for name, records in found]
