"""What every target's configuration says, whatever its family. Reading it needs no ONNX package."""

from __future__ import annotations

from dataclasses import dataclass

from onnxkit.rotary import Rotary


@dataclass(frozen=True)
class ModelConfig:
    """What every target's configuration says. Sizes are counts; names follow ``config.json``."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rotary: Rotary
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None

    @property
    def num_hidden_layers(self) -> int:
        """The number of decoder layers."""
        raise NotImplementedError

    @property
    def longest_context(self) -> int:
        """Positions that the model is made for: max_position_embeddings, or what YaRN stretches the trained context to.

        With YaRN the latter counts: the model cards add the rope parameters and leave max_position_embeddings, which
        transformers does not use for the angles.
        """
        return max(self.max_position_embeddings, self.rotary.yarn.length if self.rotary.yarn else 0)
