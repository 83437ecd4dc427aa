"""Nodes of the packed target and of drafters, ours and those of onnxruntime-genai's own builder: nodes.py WORK_DIR

Exports the bundled checkpoint with both, with state updates and a pruned head, and prints tables in Markdown: the whole
graph, one layer of each kind, and tiny drafters of two layers. Needs the extras "cpu" and "verify" (the other builder
reads with transformers).
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx_ir as ir

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.tiny_drafter import make_config, make_tensors, write

ROOT = Path(__file__).parent.parent
CHECKPOINT = ROOT / "tests" / "assets" / "tiny-qwen35"
OPTIONS = ["use_paged_attention=true", "state_update_capacity=7", "prune_lm_head=true"]
PEER = "onnxruntime_genai.models.builder"
LAYERS = {"linear attention": 1, "full attention": 3}


def export(module: str, output: Path, *more: str, graph: str = "model") -> ir.Graph:
    """A graph that a builder's command line makes."""
    command = [sys.executable, "-m", module, "-i", CHECKPOINT, "-o", output, "-p", "bf16", "-e", "cuda"]
    arguments = [*command, "--extra_options", *OPTIONS, *more]
    subprocess.run([str(part) for part in arguments], cwd=ROOT, check=True, capture_output=True)
    return ir.load(output / f"{graph}.onnx").graph


def kinds(graph: ir.Graph, layer: int | None) -> Counter[str]:
    """Nodes by operator, of the whole graph or of one layer."""
    return Counter(
        node.op_type for node in graph if layer is None or f"layers.{layer}/" in str(node.name).removeprefix("/")
    )


def drafter_table(work: Path) -> None:
    """The nodes of both kinds of drafters. The other builder must be told the taps, and where the block size is."""
    print("\n| drafter, 2 layers | ours | onnxruntime-genai's builder |\n|---|---|---|")
    for kind in ("dflash2", "dspark"):
        config = make_config(kind)
        tensors = make_tensors(config)
        config["block_size"] = config["dflash_config"]["block_size"]
        write(work / kind, config, tensors)
        options = (f"{kind}_path={work / kind}", "aux_hidden_state_layers=2,4,6")
        ours = export("builder", work / f"ours-{kind}", *options, graph=kind)
        theirs = export(PEER, work / f"theirs-{kind}", "exclude_mtp=true", *options, graph=kind)
        print(f"| {kind} | {kinds(ours, None).total()} | {kinds(theirs, None).total()} |")


def main() -> None:
    """Export and print."""
    work = Path(sys.argv[1]).resolve()
    ours = export("builder", work / "ours")
    theirs = export(PEER, work / "theirs", "exclude_mtp=true")
    print("| part | ours | onnxruntime-genai's builder |\n|---|---|---|")
    print(f"| the whole graph, 8 layers | {sum(kinds(ours, None).values())} | {sum(kinds(theirs, None).values())} |")
    for title, layer in LAYERS.items():
        mine, other = kinds(ours, layer), kinds(theirs, layer)
        print(f"| one layer of {title} | {mine.total()} | {other.total()} |")
    for title, layer in LAYERS.items():
        mine, other = kinds(ours, layer), kinds(theirs, layer)
        print(f"\nOne layer of {title}:\n\n| operator | ours | theirs |\n|---|---|---|")
        for operator in sorted({*mine, *other}):
            print(f"| {operator} | {mine[operator] or ''} | {other[operator] or ''} |")
    drafter_table(work)


if __name__ == "__main__":
    main()
