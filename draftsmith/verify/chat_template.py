"""A check of the chat template: the runtime renders conversations as Jinja does, as transformers sets it up."""

from __future__ import annotations

from pathlib import Path

from builder.chat_template import compare, find_template, has_template
from builder.tokenizer import TOKENIZER_CONFIG
from draftsmith.verify.checks import Results
from onnxkit.weights.checkpoint import Checkpoint


def check_chat_template(folder: Path, checkpoint: Checkpoint | None, results: Results) -> None:
    """Render sample conversations both ways: the export by the runtime, the checkpoint's own template by Jinja.

    Args:
        folder: The export.
        checkpoint: The target's checkpoint; without it, Jinja renders the export's own template.
        results: Where the check goes.
    """
    if not has_template(folder):
        return  # there is nothing to compare; if the checkpoint has one, the comparison of files reports it
    with results.guarded("chat template"):
        config = checkpoint.read_json(TOKENIZER_CONFIG) if checkpoint else None
        original = find_template(checkpoint, config) if checkpoint and config else None
        result = compare(folder, original.text if original else None)
        of = "the checkpoint's own template" if original else "it"
        what = f"the runtime renders {len(result.compared)} conversations as Jinja renders {of}"
        faults = list(result.differences) or ([] if result.compared else ["it accepts no sample conversation"])
        results.stated("chat template", what, faults)
