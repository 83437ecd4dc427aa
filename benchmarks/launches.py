"""Operations of a step on a GPU, of our exports and of those of onnxruntime-genai's own builder: launches.py WORK_DIR

Needs no GPU: the real host code of onnxruntime-gpu and onnxruntime-genai-cuda runs on a stand-in device that logs what
it is asked for (docs/cuda.md). Exports the bundled checkpoint and tiny drafters with both builders and prints tables in
Markdown: the operations of a step of plain decoding and of rounds of verification and drafting, and with --kernels
each kernel of them. tests/cuda/work.py says what exactly is counted. Needs the extras "cpu" and "verify", and g++.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.cuda.log import Step
from tests.cuda.work import BUILDERS, DRAFTERS, decode_step, described, draft_round, export

Sides = dict[str, Step]  # a step of each builder's export


def measured(work: Path, capability: int) -> Iterator[tuple[str, Sides]]:
    """What is done, and a step of each."""
    folders = {builder: export(builder, work) for builder in BUILDERS}
    for requests in (1, 2):
        title = f"plain decoding, {requests} request{'s' * (requests > 1)}"
        yield title, {builder: decode_step(folder, capability, requests) for builder, folder in folders.items()}
    for kind in DRAFTERS:
        folders = {builder: export(builder, work, kind) for builder in BUILDERS}
        for accepted in (True, False):
            title = f"{kind} round, {'all' if accepted else 'no'} drafts accepted"
            yield (
                title,
                {builder: draft_round(folder, capability, accepted=accepted) for builder, folder in folders.items()},
            )


def kernels(title: str, sides: Sides) -> None:
    """Print each kind of operation with its number on both sides."""
    mine, other = sides["ours"].named(), sides["theirs"].named()
    print(f"\n{title}:\n\n| operation | ours | theirs |\n|---|---|---|")
    for name in sorted({*mine, *other}, key=lambda name: (-mine[name], name)):
        print(f"| {name} | {mine[name] or ''} | {other[name] or ''} |")


def main() -> None:
    """Export, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for the exports")
    parser.add_argument("--sm", type=int, default=90, help="compute capability without its point: 80, 86, 89, 90, 120")
    parser.add_argument("--kernels", action="store_true", help="print each kernel, too")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = list(measured(arguments.work.resolve(), arguments.sm))
    print(f"| one step, sm{arguments.sm} | ours | onnxruntime-genai's builder | ratio | ours with CUDA graphs |")
    print("|---|---|---|---|---|")
    for title, sides in results:
        cells = [described(sides[builder].counts(), sides[builder].own()) for builder in ("ours", "theirs")]
        ratio = sides["ours"].counts().operations / sides["theirs"].counts().operations
        replayed = described(sides["graphs"].counts(), sides["graphs"].own())
        print(f"| {title} | {' | '.join(cells)} | {ratio:.2f} | {replayed} |")
    if arguments.kernels:
        for title, sides in results:
            kernels(title, sides)


if __name__ == "__main__":
    main()
