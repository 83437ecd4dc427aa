"""The checkpoint's tokenizer and generation files: which go along, and what the runtime needs changed in them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxkit.json_object import JsonObject
from onnxkit.weights.checkpoint import Checkpoint

TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer.json", "tokenizer_config.json", "generation_config.json"

# Copied as they are where the checkpoint has them.
FILES = (
    TOKENIZER,
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)

# Classes that the runtime knows; it refuses others, even Qwen3_5Tokenizer, which transformers writes for these models.
KNOWN_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast")
CLASS = "Qwen2Tokenizer"


@dataclass(frozen=True)
class TokenizerFiles:
    """What will be written beside the model.

    Attributes:
        copies: Files of the checkpoint to copy.
        config: ``tokenizer_config.json`` with the class changed; None where it is copied or absent.
        notes: What the user should know, a line each.
    """

    copies: tuple[Path, ...]
    config: dict[str, Any] | None
    notes: tuple[str, ...]

    def size(self) -> int:
        """Bytes that will be written."""
        return sum(path.stat().st_size for path in self.copies) + len(self._config_text().encode())

    def write(self, folder: Path) -> None:
        """Write the files."""
        for path in self.copies:
            shutil.copyfile(path, folder / path.name)
        if self.config is not None:
            (folder / TOKENIZER_CONFIG).write_text(self._config_text(), encoding="utf-8")

    def _config_text(self) -> str:
        return "" if self.config is None else json.dumps(self.config, indent=2, ensure_ascii=False) + "\n"


def plan_tokenizer(checkpoint: Checkpoint) -> TokenizerFiles:
    """Choose the files. A checkpoint without a tokenizer gives an export without one, and a note.

    Raises:
        ExportError: A file is a link that leads out of the checkpoint, or has to be read and is not valid JSON.
    """
    present = [path for name in FILES if (path := checkpoint.file(name))]
    config = checkpoint.read_json(TOKENIZER_CONFIG)
    generation = [path for path in [checkpoint.file(GENERATION_CONFIG)] if path]
    if checkpoint.file(TOKENIZER) is None or config is None:
        missing = TOKENIZER if checkpoint.file(TOKENIZER) is None else TOKENIZER_CONFIG
        note = f"tokenizer: the checkpoint has no {missing}, so the export has none (token ids in, token ids out)"
        return TokenizerFiles(tuple(generation), None, (note,))
    name = config.string("tokenizer_class", default=None)
    if name in KNOWN_CLASSES:
        unchanged = [path for path in [checkpoint.file(TOKENIZER_CONFIG)] if path]
        return TokenizerFiles((*present, *unchanged, *generation), None, ())
    note = f"tokenizer: class {name or 'not named'} is written as {CLASS}, which the runtime knows"
    return TokenizerFiles((*present, *generation), config.data | {"tokenizer_class": CLASS}, (note,))


def stop_notes(checkpoint: Checkpoint, stop_ids: tuple[int, ...]) -> list[str]:
    """A note where the tokenizer's end token is none of the stop ids: chats would then run on."""
    config, tokenizer = checkpoint.read_json(TOKENIZER_CONFIG), checkpoint.read_json(TOKENIZER)
    if config is None or tokenizer is None:
        return []
    end = config.data.get("eos_token")
    token = end.get("content") if isinstance(end, dict) else end
    added = tokenizer.data.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict) and entry.get("content") == token and entry.get("id") not in stop_ids:
            return [f"stop ids: {list(stop_ids)} do not hold the tokenizer's end token {token} (id {entry.get('id')})"]
    return []


def generation_config(checkpoint: Checkpoint) -> JsonObject:
    """``generation_config.json``, or an empty object where there is none."""
    return checkpoint.read_json(GENERATION_CONFIG) or JsonObject({}, GENERATION_CONFIG)
