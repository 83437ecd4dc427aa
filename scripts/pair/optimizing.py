"""What both trainings share: the optimizer, its schedule, a step."""

from __future__ import annotations

import math
from typing import Any

import torch

Log = list[dict[str, float]]


def schedule(step: int, steps: int, warmup: int = 40) -> float:
    """The learning rate's factor: a linear start, then a cosine down to 2 %."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def optimizer_of(module: torch.nn.Module, rate: float) -> torch.optim.AdamW:
    """AdamW; matrices decay, all else does not."""
    parameters = list(module.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))


def step_with(optimizer: torch.optim.Optimizer, module: torch.nn.Module, loss: torch.Tensor, rate: float) -> None:
    """One step of the optimizer at a learning rate, the gradient clipped."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
