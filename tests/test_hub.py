"""Checkpoints from the Hub, by a small hub on this machine and by caches laid out by hand. Nothing leaves it."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from builder.hub import fetch
from onnxkit.errors import ExportError
from tests.checkpoints import TINY, variant
from tests.hub import CLOSED, COMMIT, REPOSITORY, SHARDS, Served, cached, fetched, publish, refused, run, running

TINY_FILES = {path.name for path in TINY.iterdir()}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Served]:
    with running(tmp_path / "hub") as served:
        yield served


def exports(tmp_path: Path, snapshot: Path, tiny_export: Path) -> None:
    """See that a snapshot exports as the folder does that it came from."""
    output = tmp_path / "out"
    command = [sys.executable, "-m", "builder", "-i", str(snapshot), "-o", str(output), "-p", "fp32", "-e", "cpu"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    for name in ("model.onnx", "model.onnx.data", "genai_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (output / name).read_bytes() == (tiny_export / name).read_bytes()
        assert not (output / name).is_symlink()


# --- from a hub ---


def test_only_what_an_export_reads_is_fetched(hub: Served, tmp_path: Path, tiny_export: Path) -> None:
    publish(hub)
    snapshot = fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    assert snapshot == tmp_path / "cache" / "models--org--tiny" / "snapshots" / COMMIT
    assert {path.name for path in snapshot.iterdir()} == TINY_FILES == hub.downloads()
    assert all(path.is_symlink() for path in snapshot.iterdir())
    exports(tmp_path, snapshot, tiny_export)


def test_shards_are_those_that_the_index_names(hub: Served, tmp_path: Path, tiny_export: Path) -> None:
    folder = publish(hub, shards=2)
    shutil.copyfile(folder / SHARDS[0], folder / "model-00003-of-00002.safetensors")
    shutil.copyfile(folder / SHARDS[0], folder / "model.safetensors")
    snapshot = fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    expected = TINY_FILES - {"model.safetensors"} | {*SHARDS, "model.safetensors.index.json"}
    assert {path.name for path in snapshot.iterdir()} == expected == hub.downloads()
    exports(tmp_path, snapshot, tiny_export)


def test_the_cache_of_the_library_is_the_default(hub: Served, tmp_path: Path) -> None:
    publish(hub)
    snapshot = fetched(tmp_path, hub.url, "org/tiny")
    assert snapshot == tmp_path / "home" / "hub" / "models--org--tiny" / "snapshots" / COMMIT


def test_nothing_is_fetched_twice_and_then_the_cache_is_enough(hub: Served, tmp_path: Path) -> None:
    publish(hub)
    snapshot = fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    hub.requests.clear()
    assert fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache") == snapshot
    assert hub.downloads() == set()
    assert fetched(tmp_path, CLOSED, "org/tiny", tmp_path / "cache") == snapshot
    assert fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache", HF_HUB_OFFLINE="1") == snapshot


def test_a_download_that_was_cut_off_goes_on(hub: Served, tmp_path: Path) -> None:
    publish(hub, shards=2)
    snapshot = fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    (snapshot / SHARDS[1]).resolve().unlink()
    message = refused(tmp_path, CLOSED, "org/tiny", tmp_path / "cache")
    assert SHARDS[1] in message and "-i" in message
    hub.requests.clear()
    assert fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache") == snapshot
    assert (snapshot / SHARDS[1]).is_file() and hub.downloads() == {SHARDS[1]}


@pytest.mark.parametrize("name", ["*.py", "modeling_evil.py", "original/model.safetensors", "..\\x.safetensors", 7])
def test_an_index_cannot_ask_for_anything_else(hub: Served, tmp_path: Path, name: object) -> None:
    folder = publish(hub, shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": name}}))
    message = refused(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    assert repr(name) in message and "weight_map" in message
    assert not any(path.endswith((".py", ".safetensors")) for path in hub.downloads())


def test_a_release_in_between_is_fetched_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configuration and weights are of one commit, whenever the repository changes."""
    old, new = (cached(tmp_path / "cache", TINY, commit=digit * 40) for digit in "12")
    (old / "model.safetensors").unlink()
    answers = [old, new, new]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(answers.pop(0)))
    assert fetch("org/tiny", tmp_path / "cache") == new


def test_a_name_in_the_index_is_no_pattern(hub: Served, tmp_path: Path) -> None:
    folder = publish(hub, shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "*.safetensors"}}))
    message = refused(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    assert "*.safetensors" in message and "letters, digits, dots" in message
    assert not any(path.endswith(".safetensors") for path in hub.downloads())


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_repository_that_is_no_checkpoint(hub: Served, tmp_path: Path, missing: str) -> None:
    (publish(hub) / missing).unlink()
    assert f"no file {missing}" in refused(tmp_path, hub.url, "org/tiny", tmp_path / "cache")


def test_a_repository_of_another_format(hub: Served, tmp_path: Path) -> None:
    (hub.root / "org" / "gguf").mkdir()
    (hub.root / "org" / "gguf" / "model.gguf").write_text("x")
    assert "no file config.json" in refused(tmp_path, hub.url, "org/gguf", tmp_path / "cache")
    assert hub.downloads() == set()


def test_no_such_repository(hub: Served, tmp_path: Path) -> None:
    message = refused(tmp_path, hub.url, "org/misspelt", tmp_path / "cache")
    for part in ("-m org/misspelt", "does not exist, or you may not read it", "spelling", "HF_TOKEN", "hf auth login"):
        assert part in message


def test_a_gated_repository(hub: Served, tmp_path: Path) -> None:
    publish(hub, "org/gated")
    message = refused(tmp_path, hub.url, "org/gated", tmp_path / "cache")
    for part in ("gated", "-m org/gated", "HF_TOKEN", "hf auth login", "-i"):
        assert part in message


@pytest.mark.parametrize("name", ["", "a/b/c", "./models/tiny", "../tiny", "org/na--me", "org/na me", "/tmp/tiny"])
def test_no_name_of_a_repository(hub: Served, tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, hub.url, name, tmp_path / "cache")
    assert repr(name) in message and "owner/name" in message and "use -i" in message
    assert hub.requests == []


def test_a_cache_that_is_no_folder(hub: Served, tmp_path: Path) -> None:
    publish(hub)
    (tmp_path / "cache").write_text("a file")
    message = refused(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    assert "cache cannot be written to" in message and str(tmp_path / "cache") in message and "-c" in message


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("Xet: No space left on device")]
)
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(ExportError, match="not enough room") as caught:
        fetch("org/tiny", tmp_path)
    assert "No space left" in str(caught.value) and "-c" in str(caught.value)


def test_importing_waits_for_no_hub(tmp_path: Path) -> None:
    code = "import sys, builder.hub; print('huggingface_hub' in sys.modules)"
    assert run(tmp_path, CLOSED, code=code)[1] == "False"


# --- from a cache alone ---

OFFLINE = [(CLOSED, {}), (CLOSED, {"HF_HUB_OFFLINE": "1"})]


@pytest.mark.parametrize(("url", "env"), OFFLINE, ids=["unreachable", "offline"])
@pytest.mark.parametrize("shards", [0, 2])
def test_a_whole_snapshot(tmp_path: Path, tiny_export: Path, url: str, env: dict[str, str], shards: int) -> None:
    snapshot = cached(tmp_path / "cache", variant(tmp_path / "c", shards=shards))
    assert fetched(tmp_path, url, "org/tiny", tmp_path / "cache", **env) == snapshot
    exports(tmp_path, snapshot, tiny_export)


def test_a_hub_that_is_down_leaves_the_cache(hub: Served, tmp_path: Path) -> None:
    snapshot = cached(tmp_path / "cache", TINY)
    (tmp_path / "cache" / "models--org--tiny").rename(tmp_path / "cache" / "models--org--down")
    assert fetched(tmp_path, hub.url, "org/down", tmp_path / "cache").name == snapshot.name
    assert "-m org/down" in refused(tmp_path, hub.url, "org/down", tmp_path / "empty")


@pytest.mark.parametrize(("url", "env"), OFFLINE, ids=["unreachable", "offline"])
def test_nothing_cached(tmp_path: Path, url: str, env: dict[str, str]) -> None:
    message = refused(tmp_path, url, "org/tiny", tmp_path / "cache", **env)
    for part in ("cannot be reached", "-m org/tiny", "HF_HUB_OFFLINE", "HF_ENDPOINT", "-i"):
        assert part in message


@pytest.mark.parametrize(("url", "env"), OFFLINE, ids=["unreachable", "offline"])
@pytest.mark.parametrize("missing", ["config.json", "model.safetensors.index.json", SHARDS[1]])
@pytest.mark.parametrize("commit", [COMMIT, "abc123"])
def test_a_part_of_a_snapshot(tmp_path: Path, url: str, env: dict[str, str], missing: str, commit: str) -> None:
    cached(tmp_path / "cache", variant(tmp_path / "c", shards=2), without=(missing,), commit=commit)
    message = refused(tmp_path, url, "org/tiny", tmp_path / "cache", **env)
    assert missing in message and "HF_HUB_OFFLINE" in message and "-m org/tiny" in message


def test_a_link_without_its_blob_is_missing(tmp_path: Path) -> None:
    snapshot = cached(tmp_path / "cache", TINY)
    (snapshot / "model.safetensors").resolve().unlink()
    assert "no file model.safetensors" in refused(tmp_path, CLOSED, "org/tiny", tmp_path / "cache")


def test_the_command(hub: Served, tmp_path: Path, tiny_export: Path) -> None:
    """-m in the place of -i; an output that cannot be is refused before anything is fetched."""
    publish(hub)
    output = tmp_path / "out"
    code = "import sys; from builder.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["-m", "org/tiny", "-c", tmp_path / "cache", "-o", output, "-p", "fp32", "-e", "cpu"]
    output.mkdir()
    (output / "notes.txt").touch()
    status, _, message = run(tmp_path, hub.url, *arguments, code=code)
    assert status == 2 and "notes.txt" in message and not (tmp_path / "cache").exists()
    (output / "notes.txt").unlink()
    assert run(tmp_path, hub.url, *arguments, code=code)[0] == 0
    for name in ("model.onnx", "model.onnx.data"):
        assert (output / name).read_bytes() == (tiny_export / name).read_bytes()
