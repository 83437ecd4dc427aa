"""The reference: transformers' own model, in float32, with the weights as an export stores them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.utils.logging import disable_progress_bar

# Tensors that an export keeps in float32 whatever its precision.
_FLOAT32 = ("A_log", "dt_bias")


def load_reference(checkpoint: Path, precision: torch.dtype = torch.float32) -> Any:
    """The checkpoint's model in float32, its weights rounded as an export of ``precision`` rounds them.

    Weights are rounded to ``precision``; norm weights are stored with their +1, so ``1 + w`` is what is rounded;
    the rotary tables' values are rounded too. In float32 nothing changes.
    """
    model = _load(checkpoint, torch.float32)
    if precision != torch.float32:
        for name, parameter in model.named_parameters():
            if not name.endswith(_FLOAT32) and "visual" not in name:
                offset = 1 if _has_plus_one(name) else 0
                parameter.data = (parameter.data + offset).to(precision).to(torch.float32) - offset
        _round_rotary(model, precision)
    return model


def load_rounding(checkpoint: Path, precision: torch.dtype) -> Any:
    """The checkpoint's model as transformers runs it in a type of 16 bits, which rounds every result to that type.

    Its distance from :func:`load_reference`'s is what that type costs a correct implementation.
    """
    model = _load(checkpoint, precision)
    for name, parameter in model.named_parameters():
        if name.endswith(_FLOAT32):
            parameter.data = parameter.data.to(torch.float32)
    return model


def _load(checkpoint: Path, precision: torch.dtype) -> Any:
    disable_progress_bar()  # transformers' own, which moves the cursor even in a job's log
    config = AutoConfig.from_pretrained(checkpoint)
    if "Qwen3_5ForConditionalGeneration" in config.architectures:
        return Qwen3_5ForConditionalGeneration.from_pretrained(checkpoint, dtype=precision).eval()
    text = config.get_text_config()  # it may hold the outer configuration of the model that it was taken from
    return Qwen3_5ForCausalLM.from_pretrained(checkpoint, config=text, dtype=precision).eval()


def greedy(model: Any, prompts: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` tokens after each prompt ``[batch, length]``, the likeliest each time: ``[batch, count]``."""
    ids = prompts
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[:, prompts.shape[1] :]


def _has_plus_one(name: str) -> bool:
    """Whether a norm adds 1 to its weight: in the text model, all do except the gated one."""
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")


def _round_rotary(model: Any, precision: torch.dtype) -> None:
    for module in model.modules():
        if type(module).__name__ == "Qwen3_5TextRotaryEmbedding":
            forward = module.forward

            def rounded(*args: Any, _forward: Any = forward, **kwargs: Any) -> tuple[torch.Tensor, ...]:
                return tuple(table.to(precision).to(torch.float32) for table in _forward(*args, **kwargs))

            module.forward = rounded


@contextmanager
def operator_epsilon() -> Iterator[None]:
    """Within it, transformers brings queries and keys to unit length with the epsilon of the GatedDeltaNet operator."""
    original = modeling_qwen3_5.l2norm

    def l2norm(x: torch.Tensor, dim: int = -1, eps: float = 1e-6) -> torch.Tensor:
        return original(x, dim, 1e-12)

    modeling_qwen3_5.l2norm = l2norm
    try:
        yield
    finally:
        modeling_qwen3_5.l2norm = original


def entering_streams(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """The residual stream entering each layer, and the final norm, ``[batch, sequence, hidden]`` each.

    transformers' own list of hidden states ends with the final norm's output, so a hook takes the last stream.
    """
    text = getattr(model.model, "language_model", model.model)
    last: list[torch.Tensor] = []
    hook = text.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
    try:
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
    finally:
        hook.remove()
    return [*states[:-1], *last]
