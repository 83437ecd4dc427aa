"""The house: imports go one way, files stay readable, public things are documented."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("onnxkit", "drafters", "genai_config", "builder", "draftsmith")

# What each part may import of the others. A target family is a part of its own, and so is what families and builder
# agree on; of a family, others may import its record only.
AGREED = {"builder.family", "builder.model_config"}
FAMILY_RECORDS = {"builder.qwen35.family"}
MAY_IMPORT = {
    "onnxkit": set(),
    "drafters": {"onnxkit"},
    "genai_config": {"onnxkit"},
    "family": {"onnxkit", "genai_config"},
    "builder.qwen35": {"onnxkit", "genai_config", "family"},
    "builder": {"onnxkit", "drafters", "genai_config", "family", "builder.qwen35"},
    "draftsmith": {"onnxkit", "drafters", "genai_config", "family", "builder"},
}
FILES = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
ALL_FILES = sorted(
    {*FILES, *(path for part in ("tests", "scripts", "benchmarks") for path in (REPOSITORY / part).rglob("*.py"))}
)

# Files fit in a head, functions on a screen. Those of these names are too long, and are still to be split.
MOST_LINES, MOST_OF_A_FUNCTION = 400, 60
TOO_LONG = {
    "tests/test_any_change.py",
    "tests/test_bad_input.py",
    "tests/test_drafter_reading.py",
    "tests/test_verify_truth.py",
}
TOO_LONG_FUNCTIONS: set[str] = set()


def part_of(module: str) -> str | None:
    if module.split(".")[0] not in PACKAGES:
        return None
    if module in AGREED:
        return "family"
    return "builder.qwen35" if module.startswith("builder.qwen35") else module.split(".")[0]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield str(node.module)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_file(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    part = part_of(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))
    assert part is not None
    used = {part_of(name) for name in imports(tree)} - {None, part}
    assert used <= MAY_IMPORT[part]
    if part != "builder.qwen35":
        assert {name for name in imports(tree) if part_of(name) == "builder.qwen35"} <= FAMILY_RECORDS
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            name = getattr(node, "name", path.name)
            private = name.startswith("_") or any(name in body for body in nested_names(tree))
            assert private or ast.get_docstring(node), f"{name} has no docstring"


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_length(path: Path) -> None:
    text, name = path.read_text(), str(path.relative_to(REPOSITORY))
    assert (len(text.splitlines()) > MOST_LINES) == (name in TOO_LONG)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert (length > MOST_OF_A_FUNCTION) == (f"{name}::{node.name}" in TOO_LONG_FUNCTIONS), (
                f"{node.name}: {length}"
            )


def nested_names(tree: ast.AST) -> Iterator[set[str]]:
    """Names of functions inside functions, which are nobody else's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef) and inner is not node}
