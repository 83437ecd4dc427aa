"""What is given as a checkpoint or an export and is something else: each message says what it is and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from draftsmith.cli import main
from tests.checkpoints import TINY, Tensors, variant
from tests.runtime import export

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9319428096\n"
BASE = "Qwen/Qwen3.5-4B"
ADAPTER = json.dumps({"base_model_name_or_path": BASE, "peft_type": "LORA"})


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def refused_everywhere(capsys: pytest.CaptureFixture[str], tmp_path: Path, folder: Path) -> list[str]:
    """What each command says that takes a checkpoint: as a target and as a drafter."""
    out = ["-o", tmp_path / "out", "-p", "bf16", "-e", "cuda"]
    messages = [
        refused(capsys, "export", "-i", folder, *out),
        refused(capsys, "export", "-i", TINY, *out, "--extra_options", f"drafter_path={folder}"),
        refused(capsys, "inspect", folder),
    ]
    assert not (tmp_path / "out").exists()
    return messages


def with_files(**files: str) -> Callable[[Path], None]:
    """A folder with nothing but these files; ``__`` stands for a dot, and ``config__json`` is the tiny target's."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text or (TINY / "config.json").read_text())

    return make


def replaced(name: str, text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        shutil.copytree(TINY, folder)
        (folder / name).write_text(text)

    return make


@pytest.mark.parametrize(
    ("make", "what", "to_do"),
    [
        (with_files(config__json="", m__gguf="GGUF"), "m.gguf is a GGUF file", "as safetensors"),
        (with_files(m__gguf="GGUF"), "m.gguf is a GGUF file", "as safetensors"),
        (
            with_files(config__json="", pytorch_model__bin="x"),
            "pytorch_model.bin holds the weights as pickles",
            "convert",
        ),
        (with_files(config__json="", model__pt="x"), "the raw state of a training run", "Export the run"),
        (with_files(config__json="", adapter_config__json=ADAPTER), f"an adapter of {BASE}", "merge_and_unload"),
        (with_files(adapter_config__json=ADAPTER), f"an adapter of {BASE}", "merge_and_unload"),
        (with_files(adapter_config__json="{"), "an adapter", "merge_and_unload"),
        (with_files(adapter_config__json="[1]"), "an adapter", "merge_and_unload"),
        (with_files(genai_config__json="{}"), "is an export", "the checkpoint that it was made from"),
        (replaced("model.safetensors", POINTER), "a pointer of Git LFS", "git lfs pull"),
        (replaced("config.json", POINTER), "a pointer of Git LFS", "git lfs pull"),
        (replaced("model.safetensors", "<!DOCTYPE html><html>"), "a web page", "resolve/main/"),
        (replaced("model.safetensors", "PK\x03\x04 archive"), "a zip archive", "as safetensors"),
        (replaced("model.safetensors", "GGUF\x03"), "a GGUF file", "as safetensors"),
    ],
)
def test_a_folder_of_something_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, make: Callable[[Path], None], what: str, to_do: str
) -> None:
    make(tmp_path / "given")
    for message in refused_everywhere(capsys, tmp_path, tmp_path / "given"):
        assert what in message and to_do in message.split("to do:")[1]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_pointer_in_place_of_any_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    replaced(name, POINTER)(tmp_path / "t")
    message = refused(capsys, "export", "-i", tmp_path / "t", "-o", tmp_path / "out", "-p", "fp32", "-e", "cpu")
    assert name in message and "git lfs pull" in message


def test_shards_without_their_index(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "t")
    (tmp_path / "t" / "model.safetensors").rename(tmp_path / "t" / "model-00001-of-00002.safetensors")
    message = refused(capsys, "inspect", tmp_path / "t")
    assert "index of the parts is missing" in message and "model.safetensors.index.json" in message.split("to do:")[1]


def test_a_folder_of_checkpoints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "run" / "checkpoint-500")
    assert f"{tmp_path / 'run' / 'checkpoint-500'}" in refused(capsys, "inspect", tmp_path / "run")


def renamed(folder: Path, rename: Callable[[str], str]) -> Path:
    def change(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[rename(name)] = tensors.pop(name)

    return variant(folder, tensors=change)


@pytest.mark.parametrize(
    ("rename", "wrapper"),
    [
        (lambda name: f"_orig_mod.{name}", "torch.compile"),
        (lambda name: name.replace(".mlp.", "._orig_mod.mlp."), "torch.compile"),  # only the layers were compiled
        (lambda name: f"module.{name}", "DistributedDataParallel"),
        (lambda name: f"base_model.model.{name}", "peft"),
        (lambda name: f"_fsdp_wrapped_module.{name}", "FSDP"),
    ],
)
def test_names_of_a_wrapper_in_a_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rename: Callable[[str], str], wrapper: str
) -> None:
    target = renamed(tmp_path / "t", rename)
    for command in (["inspect"], ["export", "-o", tmp_path / "out", "-p", "fp32", "-e", "cpu", "-i"]):
        message = refused(capsys, *command, target)
        assert wrapper in message and "save_pretrained" in message and "of 132 tensors" in message


# --- a file, or a repository's name, where a folder is meant ---


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(TINY, tmp_path_factory.mktemp("misfits") / "out")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_in_place_of_its_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, exported: Path, name: str
) -> None:
    file, out = TINY / name, ["-o", tmp_path / "out", "-e", "cuda", "-p", "bf16"]
    (tmp_path / "prompts").write_text("one")
    commands = [
        ["export", "-i", file, *out],
        ["export", "-i", TINY, *out, "--extra_options", f"drafter_path={file}"],
        ["inspect", file],
        ["doctor", file],
        ["verify", file],
        ["verify", exported, "--files", "--target", file],
        ["verify", exported, "--files", "--drafter", file],
        ["speculate", file, "--prompts", tmp_path / "prompts"],
    ]
    for command in commands:
        message = refused(capsys, *command)
        assert (
            "names a file, not a folder" in message and str(file) in message and str(TINY) in message.split("to do:")[1]
        )


@pytest.mark.parametrize("flag", ["-o", "-c"])
def test_a_file_where_a_folder_is_to_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").write_text("mine")
    arguments = {"-i": TINY, "-o": tmp_path / "out", "-p": "fp32", "-e": "cpu"} | {flag: tmp_path / "file"}
    message = refused(capsys, "export", *(part for pair in arguments.items() for part in pair))
    assert "names a file" in message and "move the file away" in message
    assert (tmp_path / "file").read_text() == "mine"


def test_gguf_and_pickles_in_place_of_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, what in {"x.gguf": "llama.cpp", "pytorch_model.bin": "pickled"}.items():
        (tmp_path / name).write_bytes(b"x")
        assert all(what in message for message in refused_everywhere(capsys, tmp_path, tmp_path / name))


@pytest.mark.parametrize("given", [BASE, f"https://huggingface.co/{BASE}", f"https://huggingface.co/{BASE}/tree/main"])
def test_a_repository_in_place_of_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str) -> None:
    """Where a repository cannot be given: ``drafter_path`` takes one as it is."""
    request = ["-o", tmp_path / "out", "-p", "fp32", "-e", "cpu"]
    assert f"write -m {BASE}." in refused(capsys, "export", "-i", given, *request)
    assert f"hf download {BASE}" in refused(capsys, "inspect", given)


@pytest.mark.parametrize("given", ["/nowhere/Qwen", "../Qwen/x", "nowhere", "a/b/c"])
def test_other_paths_are_no_repositories(capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str) -> None:
    message = refused(capsys, "export", "-i", given, "-o", tmp_path / "out", "-p", "fp32", "-e", "cpu")
    assert ("does not exist" in message and "Hub" not in message) or given == "./Qwen/x"


def test_a_checkpoint_in_place_of_an_export_and_the_other_way(
    capsys: pytest.CaptureFixture[str], exported: Path
) -> None:
    for command in ("doctor", "verify"):
        message = refused(capsys, command, TINY)
        assert "but a checkpoint" in message and f"python -m builder -i {TINY}" in message
    assert "is an export" in refused(capsys, "inspect", exported)
