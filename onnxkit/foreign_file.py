"""Files that are not what their names say, as their first bytes reveal."""

from __future__ import annotations

from pathlib import Path

from onnxkit.errors import ExportError

BEGINNING = 64  # leading bytes that tell what a file is

# How files begin, what they are, and what to do to get the one that was meant.
_BEGINNINGS = {
    b"version https://git-lfs": (
        "a pointer of Git LFS: a few lines that stand for the file until it is downloaded",
        "Run git lfs pull in the repository's folder, or download it with: hf download OWNER/NAME --local-dir FOLDER",
    ),
    b"/annex/objects/": (
        "a pointer of git-annex: a line that stands for the file until it is downloaded",
        "Run git annex get in the repository's folder.",
    ),
    b"<!doctype html": (
        "a web page",
        "Download the file itself: its link ends with resolve/main/, not with blob/main/.",
    ),
    b"<html": ("a web page", "Download the file itself: its link ends with resolve/main/, not with blob/main/."),
    b"GGUF": ("a GGUF file, the format of llama.cpp", "Take the checkpoint that it was made from, as safetensors."),
    b"PK\x03\x04": (
        "a zip archive, which is how PyTorch saves with pickle",
        "Save the model as safetensors: save_pretrained of the transformers library does so.",
    ),
}


def foreign(path: Path, beginning: bytes) -> ExportError | None:
    """The error for a file that begins like one of another kind; None if it does not."""
    start = beginning[:BEGINNING].lstrip().lower()
    for bytes_, (what, fix) in _BEGINNINGS.items():
        if start.startswith(bytes_.lower()):
            return ExportError(
                "A file is not what its name says.",
                where=path,
                found=what,
                accepted=f"the file itself, {path.name}",
                fix=fix,
            )
    return None
