"""Checkpoints for tests: the bundled one, and copies of it with something changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TINY = Path(__file__).parent / "assets" / "tiny-qwen35"
PREFIX = "model.language_model."

Json = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def variant(
    folder: Path,
    *,
    config: Callable[[Json], object] | None = None,
    tensors: Callable[[Tensors], object] | None = None,
    shards: int = 0,
) -> Path:
    """A copy of the bundled checkpoint in ``folder``, its config and tensors changed in place by the functions given.

    With ``shards`` the weights are spread over so many files with an index, tensor by tensor.
    """
    shutil.copytree(TINY, folder)
    if config:
        data = json.loads((folder / "config.json").read_text())
        config(data)
        (folder / "config.json").write_text(json.dumps(data))
    if tensors or shards:
        weights = load_file(folder / "model.safetensors")
        if tensors:
            tensors(weights)
        weights = {name: tensor.contiguous() for name, tensor in weights.items()}
        if shards:
            save_shards(folder, weights, shards)
        else:
            save_file(weights, folder / "model.safetensors")
    return folder


def save_shards(folder: Path, weights: Tensors, count: int) -> None:
    """Spread tensors over ``count`` files with an index, neighbours in different files."""
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = dict(list(weights.items())[number::count])
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def text_only(data: Json) -> None:
    """Make a multimodal config the text-only one."""
    text = data.pop("text_config")
    data.clear()
    data.update(text, architectures=["Qwen3_5ForCausalLM"])


def text_only_names(weights: Tensors) -> None:
    """Make a multimodal checkpoint's tensors those of the text-only one."""
    for name in list(weights):
        tensor = weights.pop(name)
        if name.startswith(PREFIX):
            weights["model." + name.removeprefix(PREFIX)] = tensor
        elif name == "lm_head.weight":
            weights[name] = tensor


def tie(data: Json) -> None:
    """Say that the head is the embedding."""
    data["tie_word_embeddings"] = data["text_config"]["tie_word_embeddings"] = True


def yarn(data: Json) -> None:
    """Stretch a trained context of 64 as the model cards stretch theirs; prompts in tests are longer than that."""
    parameters = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    data["text_config"]["rope_parameters"].update(parameters)
    data["text_config"]["max_position_embeddings"] = 64


def without_head(weights: Tensors) -> None:
    """Remove the LM head."""
    del weights["lm_head.weight"]
