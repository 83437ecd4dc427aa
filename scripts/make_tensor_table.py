"""Write docs/tensors.md, what becomes of each tensor of a target and its drafters: python -m scripts.make_tensor_table

The table is the tensor plan of exports of the checkpoints that the tests ship; layers are folded into one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from builder.options import BuildOptions
from builder.package import GraphPlan
from builder.plan import plan
from onnxkit.weights.tensor_plan import PlannedTensor

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "tensors.md"
ASSETS = Path("tests/assets")
TARGET, DRAFTERS = ASSETS / "pair" / "target", {"DFlash 2": "dflash2", "DSpark": "dspark"}
HEAD = """# What becomes of each tensor

Made by `python -m scripts.make_tensor_table` from the tensor plans of the checkpoints in `tests/assets/pair`, exported
in bf16 for CUDA. `N` stands for the number of a layer, `K` for a counter. For a checkpoint of your own, `draftsmith
inspect FOLDER` counts what becomes of its tensors, and the end of an export adds it up.

Several stored tensors in one row are written one after another, so that one node multiplies by all of them.
How a plan is made: [the code](architecture.md).
"""


def page() -> str:
    """The page."""
    lines = [HEAD]
    for title, kind in DRAFTERS.items():
        options = BuildOptions(
            output=Path("out"),
            precision="bf16",
            provider="cuda",
            input=REPOSITORY / TARGET,
            drafter_path=REPOSITORY / ASSETS / "pair" / kind,
        )
        target, drafter = plan(options, REPOSITORY / TARGET).package.graphs
        lines += table("The target", target) if len(lines) == 1 else []
        lines += table(f"A {title} drafter", drafter)
    return "\n".join(lines)


def table(title: str, graph: GraphPlan) -> Iterator[str]:
    """A graph's part of the page."""
    yield f"\n## {title}: `{graph.section.filename}`\n"
    yield "| initializer | type | made of | what is done |"
    yield "|---|---|---|---|"
    yield from dict.fromkeys(map(_row, graph.tensors.initializers.values()))
    for reason in dict.fromkeys(graph.tensors.left_out.values()):
        names = [name for name, why in graph.tensors.left_out.items() if why == reason]
        yield f"\nLeft out, {len(names)} tensors such as `{names[0]}`: {reason}."


def _row(tensor: PlannedTensor) -> str:
    sources = ", ".join(dict.fromkeys(f"`{_folded(stored.name)}`" for stored in tensor.sources))
    return f"| `{_folded(tensor.name)}` | {tensor.dtype.numpy().name} | {sources or '-'} | {tensor.fate} |"


def _folded(name: str) -> str:
    return re.sub(r"\blayers\.\d+\.|(?<=^const_1d_)\d+$", lambda found: "layers.N." if "." in found[0] else "K", name)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
