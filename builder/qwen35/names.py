"""How a checkpoint names what the graph names: the prefix of the text model, the head, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.qwen35.config import TargetConfig
from onnxkit.errors import ExportError, listed
from onnxkit.weights.checkpoint import INDEX_FILE, Checkpoint
from onnxkit.weights.misfits import wrapped
from onnxkit.weights.safetensors_file import same_bytes

# The graph's names of the two tables that a drafter shares.
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

# Where releases keep the text model. The graph's own names start with "model.", as those of a text-only checkpoint.
PREFIXES = ("model.language_model.", "model.", "language_model.model.", "")

# Parts of a multimodal checkpoint that a text export has no use for: prefixes, and what to call them.
LEFT_OUT = {
    ("model.visual.", "visual."): "vision encoder",
    ("mtp.",): "multi-token prediction head",
}


@dataclass(frozen=True)
class StoredNames:
    """The checkpoint's names.

    Attributes:
        prefix: What stands before ``embed_tokens``, ``layers`` and ``norm``.
        head: The LM head's name.
        tied: Whether the head is the embedding's table.
        left_out: The tensors that a text export has no use for, each with the reason.
        notes: What the user should know, a line each.
    """

    prefix: str
    head: str
    tied: bool
    left_out: Mapping[str, str]
    notes: tuple[str, ...]

    def __call__(self, name: str) -> str:
        """The stored name of a name in the graph."""
        if name.startswith("model."):
            return self.prefix + name.removeprefix("model.")
        return self.head if name == HEAD else name


def find_names(checkpoint: Checkpoint, config: TargetConfig) -> StoredNames:
    """Find the text model and the head by name, and what is left out.

    Raises:
        ExportError: The text model or the head is not there, or is there twice.
    """
    if error := wrapped(checkpoint.folder, checkpoint.tensors):
        raise error
    left_out: dict[str, str] = {}
    notes = [*_leave_out(checkpoint, config, left_out), *config.notes]
    prefix = _text_prefix(checkpoint)
    head, tied = _head(checkpoint, config, f"{prefix}embed_tokens.weight", left_out, notes)
    return StoredNames(prefix, head, tied, left_out, tuple(notes))


def _leave_out(checkpoint: Checkpoint, config: TargetConfig, left_out: dict[str, str]) -> list[str]:
    notes = []
    for prefixes, part in LEFT_OUT.items():
        names = [name for name in checkpoint.tensors if name.startswith(prefixes)]
        left_out.update(dict.fromkeys(names, part))
        if names:
            size = sum(checkpoint.tensors[name].length for name in names)
            notes.append(f"{part}: {len(names)} tensors ({prefixes[0]}*, {size / 1e6:.1f} MB) are not exported")
    if config.mtp_layers and not any(name.startswith("mtp.") for name in checkpoint.tensors):
        notes.append("multi-token prediction head: config.json declares one, the checkpoint has no mtp.* tensors")
    return notes


def _text_prefix(checkpoint: Checkpoint) -> str:
    found = [prefix for prefix in PREFIXES if f"{prefix}embed_tokens.weight" in checkpoint.tensors]
    if len(found) == 1:
        return found[0]
    accepted = listed(f"{prefix}embed_tokens.weight" for prefix in PREFIXES)
    if not found and (wrong := _astray(checkpoint, "embed_tokens.weight")):
        raise wrong
    raise ExportError(
        "The checkpoint holds its embedding more than once." if found else "The checkpoint holds no embedding.",
        where=checkpoint.folder,
        found=listed(f"{prefix}embed_tokens.weight" for prefix in found) or listed(checkpoint.tensors),
        accepted=f"one of\n{accepted}",
        fix="Check that the weights are a Qwen 3.5 text model's.",
    )


def _head(
    checkpoint: Checkpoint, config: TargetConfig, embedding: str, left_out: dict[str, str], notes: list[str]
) -> tuple[str, bool]:
    """The head's stored name, and whether it is the embedding. A head that is stored counts, as in transformers."""
    heads = [name for name in checkpoint.tensors if name.split(".")[-2:] == ["lm_head", "weight"]]
    heads = [name for name in heads if name not in left_out]
    if len(heads) > 1:
        raise ExportError(
            "The checkpoint holds more than one LM head.",
            where=checkpoint.folder,
            found=listed(heads),
            accepted="one tensor named lm_head.weight, under any prefix",
            fix="Remove the one that does not belong.",
        )
    if not heads:
        if config.tie_word_embeddings:
            return embedding, True
        if wrong := _astray(checkpoint, "lm_head.weight"):
            raise wrong
        raise ExportError(
            "The checkpoint holds no LM head.",
            where=checkpoint.folder,
            found=f"no lm_head.weight, and tie_word_embeddings {str(config.tie_word_embeddings or 'false').lower()}",
            accepted="lm_head.weight, or tie_word_embeddings true in config.json",
            fix="Complete the download, or say in config.json that the head is the embedding.",
        )
    (head,) = heads
    if not config.tie_word_embeddings:
        return head, False
    if same_bytes(checkpoint.tensors[head], checkpoint.tensors[embedding]):
        left_out[head] = "the same bytes as the embedding"
        return embedding, True
    notes.append(f"LM head: tie_word_embeddings is true, but {head} differs from the embedding and is exported")
    return head, False


def _astray(checkpoint: Checkpoint, ending: str) -> ExportError | None:
    """The error that says why a tensor is missing, if the index tells."""
    for name, wrong in checkpoint.astray.items():
        if name.endswith(ending):
            return ExportError(
                "The index and the shards disagree.",
                where=f"{checkpoint.folder}: {INDEX_FILE}",
                found=f"{name}: {wrong}",
                accepted="an index that names each tensor in the shard that holds it",
                fix="Finish the download, or get index and shards from one and the same release.",
            )
    return None
