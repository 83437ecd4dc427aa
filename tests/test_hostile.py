"""Checkpoints that were made to do harm cost a message: no memory, no time, no file of the user's, no terminal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.cli import main
from builder.hub import _weight_files
from draftsmith.cli import main as draftsmith
from onnxkit.errors import ExportError
from onnxkit.text import escaped
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import TINY, Json, variant
from tests.hostile import DFLASH2, DSPARK, FLOODS, MEMORY, NUMBERS, TARGET, claims, commands, counts, made, run
from tests.nightly import sampled
from tests.refusals import refused_checkpoint

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\b\x9b31m\u202e\u200b\x7f"


def harmless(text: str) -> bool:
    """Whether a terminal shows all of a text and obeys nothing in it but ends of lines."""
    return all(line.isprintable() for line in text.split("\n"))


# --- memory ---


@pytest.mark.parametrize("name", sampled(FLOODS, every=5))
def test_floods_are_refused_within_the_bounds(tmp_path: Path, name: str) -> None:
    harm, expected = FLOODS[name]
    checkpoint = made(TARGET, tmp_path / "c", harm)
    requests = commands(checkpoint, tmp_path / "out")
    for request, outcome in zip(requests, run(requests, tmp_path / "log"), strict=True):
        assert outcome.peak < MEMORY
        assert "Traceback" not in outcome.text and "enough memory" not in outcome.text
        if request[0] == "inspect" and name.startswith("tokenizer"):
            continue  # which does not read it
        assert outcome.status == 2 and expected in outcome.text
        assert len(outcome.text) < 100_000
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "source", sampled([TARGET, DFLASH2, DSPARK], keep=lambda path: path != DSPARK), ids=lambda path: path.name
)
def test_no_count_is_believed(tmp_path: Path, source: Path) -> None:
    """Each whole number of a configuration, made huge: either nothing is made of it, or it is refused."""
    requests, names = [], []
    for key in counts(source):
        for number in NUMBERS:
            folder = made(source, tmp_path / f"{key}-{number}", claims(key, number))
            requests += commands(folder, tmp_path / "out", drafter=source != TARGET)
            names.append(f"{key} {number}")
    refused = set()
    for position, outcome in enumerate(run(requests, tmp_path / "log")):
        assert outcome.peak < MEMORY, names[position // 2]
        assert outcome.status in (0, 2) and "Traceback" not in outcome.text, outcome.text
        assert "enough memory" not in outcome.text, names[position // 2]
        if outcome.status == 2:
            refused.add(names[position // 2].split()[0])
    assert {"num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim", "intermediate_size"} <= refused


def test_the_message_of_a_count_says_what_it_was_compared_with(tmp_path: Path) -> None:
    for key, why in (("num_attention_heads", "up to 640 (the longest side"), ("num_hidden_layers", "up to 132 (the n")):
        with pytest.raises(ExportError) as caught:
            Checkpoint(made(TINY, tmp_path / key, claims(key, "1000"))).config.section("text_config").integer(key)
        assert why in str(caught.value)


# --- links ---


@pytest.mark.parametrize(
    "name",
    [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "special_tokens_map.json",
    ],
)
@pytest.mark.parametrize("relative", [False, True])
def test_links_that_lead_out(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, relative: bool) -> None:
    checkpoint = variant(tmp_path / "c")
    secret = tmp_path / "secret"
    if (checkpoint / name).exists():
        (checkpoint / name).rename(secret)
    else:
        secret.write_text("{}")
    (checkpoint / name).symlink_to(Path("..") / "secret" if relative else secret)
    message = refused_checkpoint(capsys, checkpoint, tmp_path)
    assert name in message and f"a link to {secret}" in message and "cp -L" in message


@pytest.mark.parametrize("through", ["a shard", "a folder", "two links"])
def test_links_that_lead_out_on_another_way(capsys: pytest.CaptureFixture[str], tmp_path: Path, through: str) -> None:
    checkpoint = variant(tmp_path / "c", shards=2)
    shard, elsewhere = "model-00001-of-00002.safetensors", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (checkpoint / shard).rename(elsewhere / shard)
    if through == "a shard":
        (checkpoint / shard).symlink_to(elsewhere / shard)
    elif through == "two links":
        (checkpoint / "inner").symlink_to(elsewhere / shard)
        (checkpoint / shard).symlink_to("inner")
    else:
        (checkpoint / "sub").symlink_to(elsewhere)
        path = checkpoint / "model.safetensors.index.json"
        path.write_text(path.read_text().replace(shard, f"sub/{shard}"))
    assert "leads out" in refused_checkpoint(capsys, checkpoint, tmp_path)


def snapshot(cache: Path, blobs: Path) -> Path:
    """The bundled checkpoint as the Hub's cache keeps it: links into a folder of blobs."""
    folder = cache / "models--a--b" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    blobs.mkdir(parents=True, exist_ok=True)
    for path in TINY.iterdir():
        shutil.copy(path, blobs / f"blob-{path.name}")
        (folder / path.name).symlink_to(os.path.relpath(blobs / f"blob-{path.name}", folder))
    return folder


def exported(checkpoint: Path, output: Path) -> int:
    return main(["-i", str(checkpoint), "-o", str(output), "-p", "fp32", "-e", "cpu"])


def test_links_into_the_cache_of_the_hub(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--a--b"
    folder = snapshot(tmp_path / "hub", repository / "blobs")
    (tmp_path / "handy").symlink_to(folder)
    for number, place in enumerate((folder, tmp_path / "handy")):
        assert exported(place, tmp_path / f"out{number}") == 0
    shared = tmp_path / "hub" / "blobs" / "ab"
    shared.mkdir(parents=True)
    for blob in list((repository / "blobs").iterdir()):
        blob.rename(shared / blob.name)
        blob.symlink_to(shared / blob.name)
    assert exported(folder, tmp_path / "out2") == 2  # anybody may call a folder blobs
    (tmp_path / "hub" / "blobs" / ".huggingface-shared-blobs").touch()
    assert exported(folder, tmp_path / "out2") == 0


def test_a_cache_whose_blobs_lead_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An archive can be laid out as a cache: its blobs must not be a link to somebody's home folder."""
    home = tmp_path / "home"
    folder = snapshot(tmp_path / "hub", home)
    assert exported(folder, tmp_path / "out") == 2
    (tmp_path / "hub" / "models--a--b" / "blobs").symlink_to(home)
    assert exported(folder, tmp_path / "out") == 2
    assert "leads out" in capsys.readouterr().err and not (tmp_path / "out").exists()


# --- what is shown ---


def test_escaped_leaves_what_can_be_shown() -> None:
    assert escaped("Grüße, 模型 🙂 a.b_c") == "Grüße, 模型 🙂 a.b_c"
    assert escaped("a\x1b[2J\nb\u202e\udc80") == r"a\x1b[2J\nb\u202e\udc80"
    assert escaped("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def hostile_key(folder: Path, place: Callable[[Json], Json]) -> Path:
    path = folder / "config.json"
    data = json.loads(path.read_text())
    place(data)[f"{ESCAPES}\nerror: all is well\n"] = ESCAPES
    path.write_text(json.dumps(data, ensure_ascii=False))
    return folder


@pytest.mark.parametrize("section", ["top", "text_config"])
@pytest.mark.parametrize("command", ["export", "inspect"])
def test_keys_are_shown_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path, section: str, command: str) -> None:
    checkpoint = hostile_key(variant(tmp_path / "c"), lambda c: c if section == "top" else c[section])
    more = ["-o", str(tmp_path / "out"), "-p", "fp32", "-e", "cpu", "-i"] if command == "export" else []
    status = draftsmith([command, *more, str(checkpoint)])
    out, err = capsys.readouterr()
    assert status == 0  # an unknown key is a note, wherever it stands
    assert r"\x1b]0;owned\x07" in out + err and harmless(out) and harmless(err)
    assert not any(line.startswith("error: all is well") for line in (out + err).splitlines())


def test_names_of_tensors_and_files_are_shown_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = variant(tmp_path / "c", tensors=lambda w: w.update({f"{ESCAPES}\nx": w["lm_head.weight"].clone()}))
    assert "\\x1b" in refused_checkpoint(capsys, checkpoint, tmp_path)
    checkpoint = variant(tmp_path / f"d{ESCAPES}\n")
    (checkpoint / "config.json").unlink()
    (checkpoint / f"{ESCAPES}\n").touch()
    for folder in (checkpoint, tmp_path / f"nowhere{ESCAPES}\nerror: x"):
        assert exported(folder, tmp_path / "out") == 2
        message = capsys.readouterr().err
        assert "\\x1b" in message and harmless(message) and message.count("\nerror: ") == 0


def test_options_are_shown_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for more in (["-p", ESCAPES], ["--extra_options", f"{ESCAPES}=1"], [f"--{ESCAPES}"]):
        assert main(["-i", str(TINY), "-o", str(tmp_path / "out"), "-e", "cpu", "-p", "fp32", *more]) == 2
        message = capsys.readouterr().err
        assert "\\x1b" in message and harmless(message)


def test_an_output_of_any_name_is_shown_and_noted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / os.fsdecode(b"out\x1b\xff")
    assert exported(TINY, output) == 0
    assert "out\\x1b\\udcff" in (out := capsys.readouterr().out) and harmless(out)
    json.loads((output / "draftsmith.json").read_bytes().decode())


def test_a_bug_is_shown_escaped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError(ESCAPES)

    monkeypatch.setattr("builder.export.export", broken)
    assert exported(TINY, tmp_path / "out") not in (0, 2)
    message = capsys.readouterr().err
    assert "Traceback" in message and "\\x1b" in message and harmless(message)


def test_names_of_shards_that_are_fetched_are_plain(tmp_path: Path) -> None:
    for name in (f"{ESCAPES}.safetensors", "a\nb.safetensors", "..\\a.safetensors", "a b.safetensors"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": name}}))
        with pytest.raises(ExportError):
            _weight_files(tmp_path)


def test_files_of_a_checkpoint_are_found_in_one_place() -> None:
    """A reader that puts the path together itself follows links, and its file may change unnoticed."""
    parts = [
        path for part in ("builder", "drafters", "genai_config") for path in (TINY.parents[2] / part).rglob("*.py")
    ]
    assert parts
    assert [path.name for path in parts if "checkpoint.folder /" in path.read_text()] == []
