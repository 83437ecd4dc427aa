"""The house: imports go one way, files stay readable, public things are documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("onnxkit", "drafters", "genai_config", "builder", "draftsmith")

# What each part may import of the others. A target family is a part of its own, and so is what families and builder
# agree on; of a family, others may import its record only.
AGREED = {"builder.family", "builder.model_config"}
FAMILY_RECORDS = {"builder.qwen35.family"}
# Reading drafters and making their graphs are two parts; the first is used where there is no ONNX package.
DRAFTERS = {"drafters.checkpoint", "drafters.graph"}
MAY_IMPORT = {
    "onnxkit": set(),
    "drafters": set(),
    "drafters.checkpoint": {"onnxkit"},
    "drafters.graph": {"onnxkit", "drafters.checkpoint"},
    "genai_config": {"onnxkit"},
    "family": {"onnxkit", "genai_config"},
    "builder.qwen35": {"onnxkit", "genai_config", "family"},
    "builder": {"onnxkit", *DRAFTERS, "genai_config", "family", "builder.qwen35"},
    "draftsmith": {"onnxkit", *DRAFTERS, "genai_config", "family", "builder"},
}
FILES = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
ALL_FILES = sorted(
    {*FILES, *(path for part in ("tests", "scripts", "benchmarks") for path in (REPOSITORY / part).rglob("*.py"))}
)

# Files fit in a head, functions on a screen.
MOST_LINES, MOST_OF_A_FUNCTION = 400, 60


def part_of(module: str) -> str | None:
    if module.split(".")[0] not in PACKAGES:
        return None
    if module in AGREED:
        return "family"
    return max((part for part in MAY_IMPORT if f"{module}.".startswith(f"{part}.")), key=len)


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
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MOST_OF_A_FUNCTION, f"{node.name}: {length} lines"


READING = sorted(path for path in FILES if path.is_relative_to(REPOSITORY / "drafters" / "checkpoint"))


def test_reading_a_drafter_imports_no_onnx_package() -> None:
    """Each module of the room, in a process of its own that has imported nothing else."""
    modules = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in READING]
    program = (
        "import importlib, sys\n"
        f"for name in {[name.removesuffix('.__init__') for name in modules]}:\n"
        "    importlib.import_module(name)\n"
        "print(sorted({'onnx', 'onnx_ir', 'onnxscript', 'torch', 'transformers'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert len(modules) > 20 and done.stdout == "[]\n"


def test_reading_a_drafter_changes_no_checkpoint() -> None:
    """What becomes of tensors is said by values; nothing of a checkpoint is assigned or marked."""
    for path in READING:
        for node in ast.walk(ast.parse(path.read_text())):
            assigned = (
                [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else getattr(node, "targets", [])
            )
            assert not [part for part in assigned if "checkpoint" in ast.unparse(part)], path


def nested_names(tree: ast.AST) -> Iterator[set[str]]:
    """Names of functions inside functions and private classes, which are nobody else's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name.startswith("_")):
            yield {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef) and inner is not node}


# Operators that one file emits for all graphs, and the names of inputs that one file declares.
FORMATS, PAGED = "onnxkit/layers/weight_format.py", "onnxkit/layers/paged_attention.py"
ONE_PLACE = {
    "Gemm": {FORMATS},
    "MatMul": {FORMATS, "drafters/graph/lattice.py"},  # there of candidates' vectors, which are no weights any more
    "MatMulNBits": {FORMATS},
    "GatherBlockQuantized": {FORMATS},
    "PagedAttention": {PAGED},
    "cumulative_sequence_lengths": {PAGED},
    "past_sequence_lengths": {PAGED},
    "block_table": {PAGED},
    "attention_metadata": {PAGED},
}


def test_said_once() -> None:
    """What multiplies by weights, and what attends to pages: a new format or runtime is a change in one place."""
    found: dict[str, set[str]] = {name: set() for name in ONE_PLACE}
    for path in FILES:
        file = str(path.relative_to(REPOSITORY))
        if not file.startswith(("onnxkit", "drafters", "builder")):
            continue  # proofs look at graphs from outside, and the runtime's configuration has keys of these names
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "op":
                name = node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
            else:
                continue
            if name in found:
                found[name].add(file)
    assert all(files <= ONE_PLACE[name] for name, files in found.items()), found
    assert found["Gemm"] and found["PagedAttention"] and found["block_table"]
