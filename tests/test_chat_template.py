"""Chat templates: what an export writes renders in the runtime as transformers renders the checkpoint's own.

``assets/chat-templates/qwen3.6.jinja`` is the template that Qwen publishes with Qwen 3.6 (Apache-2.0).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnxruntime_genai as og
import pytest
from transformers import AutoTokenizer

from builder.chat_template import CONVERSATIONS, Conversation
from builder.template_rewrite import rewrite
from draftsmith.verify.chat_template import check_chat_template
from draftsmith.verify.checks import Results, Verdict
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import variant
from tests.runtime import export

QWEN36 = (Path(__file__).parent / "assets" / "chat-templates" / "qwen3.6.jinja").read_text()

LOOP = "{% for message in messages %}{{ message.role }}: BODY\n{% endfor %}{{ 'go' if add_generation_prompt }}"


def body(text: str) -> str:
    return LOOP.replace("BODY", text)


# What transformers and the runtime read differently, and what an export makes both read alike.
REWRITTEN = {
    "in a text": body("{% if 'o' in message.content %}yes{% else %}no{% endif %}"),
    "not in a text": body("{{ 'o' not in message.content }}"),
    "not ... in": body("{{ not 'o' in message.content }}"),
    "in what a filter gives": body("{{ 's' in message.role|trim|lower }}"),
    "in a sum": body("{{ 'ou' in message.content ~ 'you' }}"),
    "in brackets, twice": body("{{ ('e' in message.content) or ('x' in message.content and 'y' in message.role) }}"),
    "in an element of a split": body("{{ 'e' in message.content.split(' ')[0] }}"),
    "in an object or a text": body("{{ 'content' in message }}{{ 'name' in message }}{{ 'a' in 'abc' }}"),
    "in a list, which both know": body("{{ message.role in ['user'] }}{{ 'user' in ('user', 'tool') }}"),
    "replace": body("{{ message.content.replace('e', 'E') }}"),
    "replace, then more": body("{{ message.content.replace('\\n', ' ').strip().replace('o', '0') }}"),
    "replace of what a call gives": body("{{ (message.content + 'e').split('l')[0].replace('e', message.role) }}"),
    "replace as a filter": body("{{ message.role|trim|replace('e', 'E')|trim }}"),
    "blocks on lines of their own": (
        "{# who says what #}\n{% for message in messages %}\n\n  {% if message.role == 'user' %}\n  Q:\n"
        "{{ message.content }}\n  {% else %}\nA: {{ message.content }}\n  {% endif %} end\n{% endfor %}\n\n"
        "{% if add_generation_prompt %}\nA:\n{% endif %}\n"
    ),
    "transformers' own block": body("{% generation %}{{ message.content }}{% endgeneration %}"),
    "Qwen 3.6": QWEN36,
}


def with_template(folder: Path, template: str | None, **config: object) -> Path:
    """The bundled checkpoint with another chat template, or with keys of tokenizer_config.json."""
    checkpoint = variant(folder)
    (checkpoint / "chat_template.jinja").unlink()
    if template is not None:
        (checkpoint / "chat_template.jinja").write_text(template, encoding="utf-8")
    path = checkpoint / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return checkpoint


def by_transformers(checkpoint: Path, conversation: Conversation) -> str | None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in conversation.messages],
            tools=list(conversation.tools) or None,
            add_generation_prompt=True,
            tokenize=False,
        )
    except Exception:  # the template does not take it
        return None
    assert isinstance(text, str)
    return None if "{'type':" in text else text  # a list printed as Python shows it is no prompt


def by_runtime(folder: Path, conversation: Conversation) -> str:
    tools = json.dumps(conversation.tools) if conversation.tools else None
    return str(og.Tokenizer(str(folder)).apply_chat_template(json.dumps(conversation.messages), tools=tools))


def assert_alike(checkpoint: Path, folder: Path) -> int:
    """Sees that both render alike what transformers renders; gives how many conversations that is."""
    count = 0
    for conversation in CONVERSATIONS:
        wanted = by_transformers(checkpoint, conversation)
        if wanted is not None:
            assert by_runtime(folder, conversation) == wanted
            count += 1
    return count


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = with_template(tmp_path / "c", REWRITTEN[name])
    folder = export(checkpoint, tmp_path / "out")
    notes = capsys.readouterr().out
    assert assert_alike(checkpoint, folder) >= 3
    assert "renders it differently" not in notes and "the runtime has no" not in notes
    written = (folder / "chat_template.jinja").read_text()
    assert rewrite(written).text == written
    assert ("rewritten where the runtime reads it differently" in notes) == (written != REWRITTEN[name])


def test_old_thoughts_of_qwen_3_6(tmp_path: Path) -> None:
    """The runtime alone keeps them: '</think>' in content is false there, whatever the content."""
    conversation = CONVERSATIONS[1]
    plain = by_runtime(with_model(with_template(tmp_path / "plain", QWEN36)), conversation)
    folder = export(with_template(tmp_path / "c", QWEN36), tmp_path / "out")
    assert "A greeting." in plain and "A greeting." not in by_runtime(folder, conversation)


def with_model(folder: Path) -> Path:
    """A checkpoint's folder with as much of a configuration as the runtime's tokenizer wants."""
    (folder / "genai_config.json").write_text('{"model": {"type": "qwen3_5_text", "context_length": 1}}')
    return folder


def test_a_template_that_both_read_alike_is_copied(tmp_path: Path) -> None:
    template = "{%- for message in messages %}{{- message.content }}{%- endfor %}  {# \n #}"
    folder = export(with_template(tmp_path / "c", template), tmp_path / "out")
    assert (folder / "chat_template.jinja").read_text() == template


NOT_REWRITTEN = {
    body("{{ message.content|upper }}"): "line 1: the runtime has no filter upper",
    body("{{ message.content.upper() }}"): "line 1: the runtime has no method upper",
    body("{{ message.content.replace('a', 'b', 1) }}"): "the runtime has no method replace",
    body("{{ 1 < messages|length < 9 }}"): "a chain of comparisons",
    body("{{ 'a' + 'b' in message.content }}"): "never finds 'b' in a text",
    body("{% if loop.index is even %}{% endif %}"): "the runtime has no test even",
    body("{% set a, b = 1, 2 %}{{ a }}"): "the runtime sets one name at a time",
    body("{% raw %}{{ x }}{% endraw %}"): "it has a raw block",
    body("{{ message.content"): "Jinja itself cannot read it",
    body("{{ message.content[0] }}"): "one turn: after 'user: ' Jinja gives 'H', the runtime ''",
}


@pytest.mark.parametrize("template", NOT_REWRITTEN)
def test_what_cannot_be_rewritten_is_said(template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(with_template(tmp_path / "c", template), tmp_path / "out")
    assert NOT_REWRITTEN[template] in capsys.readouterr().out


@pytest.mark.parametrize("home", ["text", "list", "both", "older"])
def test_homes(home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runtime takes tokenizer_config.json's first, transformers the file; of a list the runtime takes nothing."""
    template = body("{{ 'e' in message.content }}")
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": template}]
    inline = {"text": template, "list": named, "both": "other", "older": None}[home]
    checkpoint = with_template(tmp_path / "c", template if home == "both" else None, chat_template=inline)
    if home == "older":
        (checkpoint / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    folder = export(checkpoint, tmp_path / "out")
    assert "chat_template" not in json.loads((folder / "tokenizer_config.json").read_text())
    assert not (folder / "chat_template.json").exists()
    assert "True" in by_runtime(folder, CONVERSATIONS[0])
    notes = capsys.readouterr().out
    assert ("tool_use left out" in notes) == (home == "list")
    assert ("counts, as in transformers" in notes) == (home == "both")


def test_without_the_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export rewrites all the same, and says that nothing was rendered."""
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    folder = export(with_template(tmp_path / "c", QWEN36), tmp_path / "out")
    assert "not rendered by the runtime" in capsys.readouterr().out
    assert "content.split('</think>')|length > 1" in (folder / "chat_template.jinja").read_text()


def test_no_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = export(with_template(tmp_path / "c", None), tmp_path / "out")
    assert "chat template" not in capsys.readouterr().out
    results = Results(tell=lambda check: None)
    check_chat_template(folder, None, results)
    assert not results.checks


def test_verify_compares_with_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = with_template(tmp_path / "c", QWEN36)
    folder = export(checkpoint, tmp_path / "out")
    assert verdict(folder, checkpoint) == verdict(folder, None) == (Verdict.PASSED, "5 conversations")
    (folder / "chat_template.jinja").write_text(QWEN36)  # as it is copied by others
    assert verdict(folder, checkpoint)[0] is verdict(folder, None)[0] is Verdict.FAILED
    (folder / "chat_template.jinja").write_text(rewrite(QWEN36).text.replace("<think>", "<thinks>"))
    assert verdict(folder, checkpoint)[0] is Verdict.FAILED


def verdict(folder: Path, checkpoint: Path | None) -> tuple[Verdict, str]:
    results = Results(tell=lambda check: None)
    check_chat_template(folder, Checkpoint(checkpoint) if checkpoint else None, results)
    (check,) = results.checks
    return check.verdict, " ".join(check.what.split()[3:5])
