"""The target: a text-only Qwen 3.5 model, trained on generated documents."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from scripts.make_tiny_checkpoint import END, PAD, TEXT, make_config, write_json
from scripts.pair.optimizing import Log, optimizer_of, schedule, step_with
from scripts.pair.text import World, windows

LENGTH = 192  # tokens of a training sequence
SEQUENCES = 12  # of a step
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def losses_on(model: Any, texts: torch.Tensor) -> tuple[float, float]:
    """Mean cross-entropy of the next token in nats, and the share of tokens that the model finds the likeliest."""
    with torch.no_grad():
        logits = model(input_ids=texts, use_cache=False).logits[:, :-1]
    loss = cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
    return float(loss), float((logits.argmax(-1) == texts[:, 1:]).float().mean())


def batches(world: World, tokenizer: Tokenizer, steps: int) -> Iterator[list[list[int]]]:
    """What the target is trained on: the texts of each step, none of them twice."""
    rng = random.Random(3)
    for _ in range(steps):
        yield windows(world, tokenizer, rng, SEQUENCES, LENGTH + 1)


def train_target(
    world: World, tokenizer: Tokenizer, held_out: torch.Tensor, steps: int, rate: float
) -> tuple[Any, Log]:
    """Train a new model on a stream of new documents. The log has its loss on ``held_out`` at some steps."""
    torch.manual_seed(3)
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**TEXT))
    optimizer = optimizer_of(model, rate)
    log: Log = []
    start = time.monotonic()
    stream = batches(world, tokenizer, steps)
    for step in range(steps + 1):
        if step % max(1, steps // 12) == 0 or step == steps:
            loss, right = losses_on(model, held_out)
            seconds = round(time.monotonic() - start)
            log.append({"step": step, "loss": round(loss, 4), "right": round(right, 4), "seconds": seconds})
            print("target", log[-1], flush=True)
        if step == steps:
            break
        texts = torch.tensor(next(stream))
        logits = model(input_ids=texts[:, :-1], use_cache=False).logits
        loss_now = cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
        step_with(optimizer, model, loss_now, rate * schedule(step, steps))
    return model.eval(), log


def target_config() -> dict[str, Any]:
    """``config.json`` of a text-only release: the bundled checkpoint's text part at the top level."""
    text: Any = make_config()["text_config"]
    assert isinstance(text, dict)
    text.pop("mtp_num_hidden_layers")
    return {"architectures": ["Qwen3_5ForCausalLM"]} | text


def write_target(model: Any, folder: Path, tokenizer_folder: Path) -> None:
    """Write the checkpoint in bf16 with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        assert not name.endswith("norm.weight") or bool(tensor.ne(0).any()), f"{name} is untouched"
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it private
    write_json(folder / "config.json", target_config())
    write_json(folder / "generation_config.json", {"eos_token_id": [END, PAD], "pad_token_id": PAD, "do_sample": False})
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer_folder / name, folder / name)
