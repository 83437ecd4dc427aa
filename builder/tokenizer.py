"""The checkpoint's tokenizer and generation files: which go along, and what the runtime needs changed in them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.chat_template import KEY, OLDER_TEMPLATE, TEMPLATE, comparison_notes, find_template
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
    TEMPLATE,
    OLDER_TEMPLATE,
)

# Classes that the runtime knows; it refuses others, even Qwen3_5Tokenizer, which transformers writes for these models.
KNOWN_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast")
CLASS = "Qwen2Tokenizer"

_SHOWN = 4  # places of a chat template that a note names


@dataclass(frozen=True)
class TokenizerFiles:
    """What will be written beside the model.

    Attributes:
        copies: Files of the checkpoint to copy.
        config: ``tokenizer_config.json`` as changed; None if it is copied or absent.
        notes: What the user should know, a line each.
        template: The chat template as rewritten; None if it is copied or absent.
    """

    copies: tuple[Path, ...]
    config: dict[str, Any] | None
    notes: tuple[str, ...]
    template: str | None = None

    def size(self) -> int:
        """Bytes that will be written."""
        texts = self._config_text() + (self.template or "")
        return sum(path.stat().st_size for path in self.copies) + len(texts.encode())

    def write(self, folder: Path) -> None:
        """Write the files."""
        for path in self.copies:
            shutil.copyfile(path, folder / path.name)
        if self.config is not None:
            (folder / TOKENIZER_CONFIG).write_text(self._config_text(), encoding="utf-8")
        if self.template is not None:
            (folder / TEMPLATE).write_text(self.template, encoding="utf-8")

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
    name, changed, notes = config.string("tokenizer_class", default=None), dict(config.data), []
    if name not in KNOWN_CLASSES:
        changed["tokenizer_class"] = CLASS
        notes.append(f"tokenizer: class {name or 'not named'} is written as {CLASS}, which the runtime knows")
    template, template_notes = _plan_template(checkpoint, config, changed)
    if template is not None:
        present = [path for path in present if path.name not in (TEMPLATE, OLDER_TEMPLATE)]
        changed.pop(KEY, None)
    same = changed == config.data
    unchanged = [path for path in [checkpoint.file(TOKENIZER_CONFIG)] if path and same]
    copies = [*present, *unchanged, *generation]
    return TokenizerFiles(tuple(copies), None if same else changed, (*notes, *template_notes), template)


def _plan_template(checkpoint: Checkpoint, config: JsonObject, written: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The chat template to write, None if it goes along as it is, and notes.

    Args:
        checkpoint: The checkpoint.
        config: Its ``tokenizer_config.json``.
        written: The same as it will be written.
    """
    found = find_template(checkpoint, config)
    if found is None:
        return None, []
    from builder.template_rewrite import rewrite  # here, so that token ids in and out need no Jinja

    result = rewrite(found.text)
    notes = []
    if found.others:
        notes.append(f"chat template: {', '.join(found.others)} left out; the runtime takes one, the default")
    elif found.hidden:
        notes.append(f"chat template: that of {found.home} counts, as in transformers, not another in {config.where}")
    if result.changes:
        shown = "; ".join(result.changes[:_SHOWN]) + (" ..." if len(result.changes) > _SHOWN else "")
        notes.append(f"chat template: rewritten where the runtime reads it differently ({shown})")
    notes += [f"chat template: {line}; render prompts that need it with transformers" for line in result.left]
    notes += comparison_notes({k: v for k, v in written.items() if k != KEY}, result.text, found.text)
    return result.text if result.changes or found.hidden else None, notes


def stop_notes(checkpoint: Checkpoint, stop_ids: tuple[int, ...]) -> list[str]:
    """A note if the tokenizer's end token is not among the stop ids: chats would then run on."""
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
    """``generation_config.json``, or an empty object if the file is absent."""
    return checkpoint.read_json(GENERATION_CONFIG, once=True) or JsonObject({}, GENERATION_CONFIG)
