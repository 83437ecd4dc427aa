"""The chat template: where a checkpoint keeps it, and whether the runtime renders it as transformers does.

transformers renders templates with Jinja, onnxruntime-genai with an engine of its own, which reads some of Jinja's
expressions as something else and says nothing. What is known of that is rewritten (builder.template_rewrite); and where
the runtime is installed, sample conversations are rendered both ways.
"""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxkit.errors import ExportError
from onnxkit.json_object import JsonObject
from onnxkit.weights.checkpoint import Checkpoint

TEMPLATE, OLDER_TEMPLATE, KEY = "chat_template.jinja", "chat_template.json", "chat_template"
_DEFAULT = "default"  # of several templates, the one that is taken unless another is asked for


@dataclass(frozen=True)
class ChatTemplate:
    """A checkpoint's chat template.

    Attributes:
        text: The template.
        home: The file that it stands in.
        others: Names of further templates that stand beside it.
        hidden: Whether the runtime would take another than transformers does.
    """

    text: str
    home: str
    others: tuple[str, ...] = ()
    hidden: bool = False


def find_template(checkpoint: Checkpoint, config: JsonObject) -> ChatTemplate | None:
    """The template that transformers takes: the file of its own first, then ``tokenizer_config.json``.

    The runtime takes that of ``tokenizer_config.json`` first.

    Raises:
        ExportError: It is not text, or cannot be read.
    """
    inline = config.data.get(KEY)
    if path := checkpoint.file(TEMPLATE):
        text = _read(path)
        return ChatTemplate(text, TEMPLATE, hidden=inline is not None and inline != text)
    if isinstance(inline, list):
        named = {str(entry.get("name")): entry.get("template") for entry in inline if isinstance(entry, dict)}
        default = named.pop(_DEFAULT, None)
        if not isinstance(default, str):
            raise config.error(KEY, f"a template named {_DEFAULT} among those of the list")
        return ChatTemplate(default, config.where, tuple(named), hidden=True)
    if inline is not None:
        return ChatTemplate(config.string(KEY), config.where)
    older = checkpoint.read_json(OLDER_TEMPLATE)
    return ChatTemplate(older.string(KEY), OLDER_TEMPLATE) if older is not None and KEY in older else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(
            "The chat template cannot be read.",
            where=path,
            found=error,
            accepted="a text in UTF-8",
            fix="Get the file again from where the checkpoint comes from.",
        ) from error


# --- sample conversations ---

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place <now> & here: é",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
_CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2}}}


@dataclass(frozen=True)
class Conversation:
    """Messages as transformers takes them, and the tools that they may call."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


def _said(role: str, content: object, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CONVERSATIONS = (
    Conversation("one turn", (_said("user", "Hello"),)),
    Conversation(
        "several turns with thoughts",
        (
            _said("system", "Be brief.\n"),
            _said("user", " How are\nyou? "),
            _said("assistant", "<think>\nA greeting.\n</think>\n\nWell."),
            _said("user", "And now?"),
            _said("assistant", "Better.", reasoning_content="They ask again."),
            _said("user", "Thanks"),
        ),
    ),
    Conversation("tools on offer", (_said("system", "Be brief."), _said("user", "Rain?")), (_TOOL,)),
    Conversation(
        "tools called",
        (
            _said("user", "Rain?"),
            _said("assistant", "Let me see.", tool_calls=[_CALL]),
            _said("tool", '{"rain": false}'),
            _said("tool", "none"),
            _said("assistant", "<think>\nDry.\n</think>\n\nNo."),
            _said("user", "Thanks"),
        ),
        (_TOOL,),
    ),
    Conversation("content in parts", (_said("user", [{"type": "text", "text": "Hello"}]),)),
)


# --- rendering ---

# How Python shows the parts of a content: a template that puts that into a prompt was not made for parts.
_OBJECT = "{'type':"

# The least that the runtime builds a tokenizer from.
_NO_TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
_NO_MODEL = {"model": {"type": "qwen3_5_text", "context_length": 1}}


@dataclass(frozen=True)
class Comparison:
    """What the two ways gave.

    Attributes:
        compared: Names of the conversations that Jinja renders; it is those that the template takes.
        differences: For each that differs, where.
    """

    compared: tuple[str, ...]
    differences: tuple[str, ...]


def render(template: str, conversation: Conversation, special: Mapping[str, Any], prompt: bool = True) -> str | None:
    """A conversation rendered by Jinja as transformers sets it up; None if the template does not take it.

    Args:
        template: The template.
        conversation: The conversation.
        special: Special tokens by name, ``eos_token`` and the like.
        prompt: Whether the assistant's turn is to be begun.
    """
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from builder.template_rewrite import Generation

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    try:
        text = environment.from_string(template).render(
            messages=list(conversation.messages),
            tools=list(conversation.tools) or None,
            add_generation_prompt=prompt,
            **special,
        )
    except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError):
        return None
    return None if _OBJECT in text else text


def _tojson(value: object, **options: Any) -> str:
    """transformers' filter: as Python writes JSON, with letters of any language as they are."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _refuse(message: str) -> None:
    raise ValueError(message)


def compare(folder: Path, reference: str | None = None) -> Comparison:
    """Render the sample conversations both ways: with the runtime's tokenizer of ``folder``, and with Jinja.

    Args:
        folder: An export, or as much of it as its tokenizer needs.
        reference: The template that Jinja renders; None for the folder's own.

    Raises:
        ImportError: The runtime is not installed.
        RuntimeError: The runtime does not take the tokenizer.
    """
    import onnxruntime_genai as og

    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {name: token for name in ("bos_token", "eos_token", "pad_token") if (token := _content(config.get(name)))}
    template = _own(folder, config) if reference is None else reference
    tokenizer = og.Tokenizer(str(folder))
    compared, differences = [], []
    for conversation in CONVERSATIONS:
        wanted = {prompt: render(template, conversation, special, prompt) for prompt in (True, False)}
        if None in wanted.values():
            continue
        compared.append(conversation.name)
        for prompt, text in wanted.items():
            if found := _difference(str(text), _runtime(tokenizer, conversation, prompt)):
                differences.append(f"{conversation.name}: {found}")
                break
    return Comparison(tuple(compared), tuple(differences))


def _own(folder: Path, config: Mapping[str, Any]) -> str:
    """The template of an export, in the order in which the runtime looks for it."""
    if isinstance(config.get(KEY), str):
        return str(config[KEY])
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    return str(json.loads((folder / OLDER_TEMPLATE).read_text(encoding="utf-8"))[KEY])


def has_template(folder: Path) -> bool:
    """Whether an export has a chat template."""
    config = folder / "tokenizer_config.json"
    files = (folder / TEMPLATE).is_file() or (folder / OLDER_TEMPLATE).is_file()
    return config.is_file() and (files or KEY in json.loads(config.read_text(encoding="utf-8")))


def _content(token: object) -> object:
    return token.get("content") if isinstance(token, dict) else token


def _runtime(tokenizer: Any, conversation: Conversation, prompt: bool) -> str:
    """The runtime's result, or its error if it fails."""
    tools = json.dumps(conversation.tools, ensure_ascii=False) if conversation.tools else None
    messages = json.dumps(conversation.messages, ensure_ascii=False)
    try:
        return str(tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt))
    except Exception as error:  # of classes of its own
        return f"(the runtime stops: {str(error).splitlines()[0]})"


def _difference(wanted: str, found: str) -> str | None:
    """The first place where two texts differ, in words."""
    if wanted == found:
        return None
    if found.startswith("(the runtime stops"):
        return found.strip("()")
    blocks = difflib.SequenceMatcher(None, wanted, found, autojunk=False).get_opcodes()
    _, a, b, c, d = next(block for block in blocks if block[0] != "equal")
    start = max(a - 20, 0)
    return f"after {wanted[start:a]!r} Jinja gives {wanted[a:b][:60]!r}, the runtime {found[c:d][:60]!r}"


def comparison_notes(config: Mapping[str, Any], template: str, reference: str) -> Iterator[str]:
    """Notes of a comparison before anything is written. The tokenizer's own file is large and is not needed for it.

    Args:
        config: ``tokenizer_config.json`` as it will be.
        template: The chat template as it will be.
        reference: The checkpoint's own.
    """
    try:
        import onnxruntime_genai  # noqa: F401 - only whether it can be
    except Exception as error:  # not installed, or without the libraries of its GPU
        yield (
            f"chat template: not rendered by the runtime, since onnxruntime-genai cannot be loaded here ({error}); "
            "draftsmith verify does it"
        )
        return
    with tempfile.TemporaryDirectory(prefix="draftsmith-template-") as name:
        folder = Path(name)
        files = {"tokenizer.json": _NO_TOKENIZER, "genai_config.json": _NO_MODEL, "tokenizer_config.json": dict(config)}
        for file, content in files.items():
            (folder / file).write_text(json.dumps(content), encoding="utf-8")
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
        try:
            result = compare(folder, reference)
        except Exception as error:  # of the runtime, of classes of its own
            yield f"tokenizer: the runtime does not take tokenizer_config.json: {str(error).splitlines()[0][:200]}"
        else:
            yield from (f"chat template: the runtime renders it differently: {line}" for line in result.differences)
            if not result.compared:
                yield "chat template: it takes none of the sample conversations, so that nothing was compared"
