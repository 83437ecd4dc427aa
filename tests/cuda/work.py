"""What one step of decoding costs a device, ours and the peer's, counted in operations on the stand-in.

The peer is onnxruntime-genai's own builder. Both export the bundled checkpoint in bf16, with a pruned head; with a
drafter, both capture up to seven drafts and read the same taps of the same tiny drafter.

What is counted is one call of the Engine's ``run``, everything in it, for one request in its steady state: the step
that is the most frequent of a run, since the first ones of each kind try the sampling kernels out. A plain step decodes
one token. A round verifies seven drafts and proposes the next seven.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.checkpoints import TINY
from tests.cuda.log import Counts, Step
from tests.cuda.stand_in import Device
from tests.tiny_drafter import make_config, make_tensors, write

ROOT = Path(__file__).parent.parent.parent
# Ours with its kernels one by one, and with CUDA graphs, which are the default; the other builder has them off.
BUILDERS = {
    "ours": ("builder", "enable_cuda_graph=false"),
    "graphs": ("builder", "enable_cuda_graph=true"),
    "theirs": ("onnxruntime_genai.models.builder", "exclude_mtp=true"),
}
DRAFTERS = ("dspark", "dflash2")
DRAFTS = 7
PROMPT, TOKENS = 20, 64
REJECT_ALL = 1  # every token differs from its draft

# The other builder writes no limit of drafts, and the Engine's own is four.
OVERLAY = {"model": {"eos_token_id": [1]}, "speculative": {"max_draft_tokens": DRAFTS}}


def export(builder: str, work: Path, kind: str | None = None) -> Path:
    """Export with a builder's command line, beside a tiny drafter of a kind if any. The output's folder."""
    module, *more = BUILDERS[builder]
    output = work / f"{builder}-{kind or 'plain'}"
    options = ["use_paged_attention=true", "prune_lm_head=true", *more]
    if kind:
        # The other builder must be told the taps, and its DFlash 2 exports cannot do without a window.
        options += [f"{kind}_path={_drafter(kind, work / f'drafter-{kind}')}", "aux_hidden_state_layers=2,4,6"]
        options += [f"state_update_capacity={DRAFTS}"]
    command = [sys.executable, "-m", module, "-i", TINY, "-o", output, "-p", "bf16", "-e", "cuda", "--extra_options"]
    done = subprocess.run([*map(str, command), *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module}: {done.stderr[-2000:]}")
    return output


def _drafter(kind: str, folder: Path) -> Path:
    config = make_config(kind)
    if kind == "dflash2":
        config |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64, "use_sliding_window": True}
    tensors = make_tensors(config)
    config["block_size"] = config["dflash_config"]["block_size"]  # where the other builder looks for it
    write(folder, config, tensors)
    return folder


def steady_step(folder: Path, device: Device, requests: int = 1) -> Step:
    """The most frequent step of a run in the Engine."""
    run = device.engine(folder, (PROMPT,) * requests, TOKENS, OVERLAY)
    found = [step for step in run.steps if step.name.startswith("step")]
    usual, times = Counter(step.counts() for step in found).most_common(1)[0]
    assert times > 3, "there is no steady state"
    return next(step for step in found if step.counts() == usual)


def decode_step(folder: Path, capability: int = 90, requests: int = 1) -> Step:
    """One step of plain decoding."""
    return steady_step(folder, Device(capability), requests)


def draft_round(folder: Path, capability: int = 90, *, accepted: bool, requests: int = 1) -> Step:
    """One round of verification and drafting in which all drafts are accepted, or none."""
    return steady_step(folder, Device(capability, reject=0 if accepted else REJECT_ALL), requests)


def described(counts: Counts, own: Counts) -> str:
    """For people: the sum, and what it is of."""
    parts = {"launch": counts.launches, "product": counts.products, "copy": counts.copies}
    parts |= {"memset": counts.memsets, "graph": counts.graphs}
    plural = {"launch": "launches", "copy": "copies"}
    listed = [f"{n} {plural.get(name, name + 's') if n > 1 else name}" for name, n in parts.items() if n]
    return f"**{counts.operations}** ({', '.join(listed)}; the runtime's own {own.operations})"
