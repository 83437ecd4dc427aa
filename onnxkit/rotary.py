"""Rotary position embedding: positions, and the angles by which a head's channels are rotated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# YaRN's own values, which apply if a configuration names none (Peng et al., section 3.2).
BETA_FAST, BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True)
class Yarn:
    """Extension of a trained context: YaRN (Peng et al., 2023, https://arxiv.org/abs/2309.00071).

    Channels that turn often within the trained context keep their frequency, those that turn rarely are slowed down by
    the factor, and a ramp connects the two.

    Attributes:
        factor: The length of the stretched context as a multiple of the trained one (1 or more).
        original_length: Positions of the trained context.
        attention_factor: What cosines and sines are multiplied by; see :func:`yarn_attention_factor`.
        beta_fast: Turns within the trained context at or above which a channel keeps its frequency.
        beta_slow: Turns within the trained context at or below which a channel is slowed down by the whole factor.
        truncate: Whether the ramp's two ends are widened to whole channels.
    """

    factor: float
    original_length: int
    attention_factor: float
    beta_fast: float = BETA_FAST
    beta_slow: float = BETA_SLOW
    truncate: bool = True

    @property
    def length(self) -> int:
        """Positions of the stretched context."""
        return round(self.factor * self.original_length)

    def frequencies(self, theta: float, powers: Array) -> Array:
        """The stretched frequencies, float32 ``[dim / 2]``, for the powers ``theta^(2i/dim)``.

        Every step is rounded to float32 in the order of transformers' ``_compute_yarn_parameters``.
        """
        one = np.float32(1)
        kept = one - self._ramp(theta, len(powers))
        return one / (powers * np.float32(self.factor)) * (one - kept) + one / powers * kept

    def _ramp(self, theta: float, count: int) -> Array:
        """How far each channel is slowed down: 0 not at all, 1 by the whole factor."""
        low, high = (self._channel(theta, 2 * count, turns) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # There are only half as many pairs of channels as the upper bound allows, but the models run with this bound.
        low, high = max(low, 0), min(high, 2 * count - 1)
        if low == high:
            high += 0.001  # a step
        ramp = (np.arange(count, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
        return np.clip(ramp, 0, 1)

    def _channel(self, theta: float, dim: int, turns: float) -> float:
        """The pair of channels, as a fractional index, that turns ``turns`` times within the trained context."""
        return dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """What YaRN multiplies cosines and sines by, so that attention over more positions stays as sharp.

    ``0.1 ln(factor) + 1`` (Peng et al., section 3.4). With both scales, DeepSeek's variant:
    ``(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)``.
    """
    scales = (1.0, 0.0) if mscale is None or mscale_all_dim is None else (mscale, mscale_all_dim)
    above, below = (0.1 * scale * math.log(factor) + 1.0 for scale in scales)
    return above / below


@dataclass(frozen=True)
class Rotary:
    """How positions become angles.

    Attributes:
        theta: The base of the geometric series of frequencies.
        dim: How many leading channels of a head are rotated (even).
        yarn: The extension to a longer context; None for the trained one.
    """

    theta: float
    dim: int
    yarn: Yarn | None = None

    def frequencies(self) -> Array:
        """``theta^(-2i/dim)``, float32 ``[dim / 2]`` (Su et al., RoFormer, 2021), stretched if there is YaRN.

        Exponent, power and reciprocal are each rounded to float32, as in transformers: a frequency that differs in its
        last place is off by a hundredth of a radian at the far end of a long context. The power itself is taken in
        float64, since NumPy's float32 power is not always the nearest value.
        """
        exponents = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        powers = (self.theta ** exponents.astype(np.float64)).astype(np.float32)
        return self.yarn.frequencies(self.theta, powers) if self.yarn else np.float32(1) / powers

    def angles(self, start: int, stop: int) -> Array:
        """The angles of positions ``[start, stop)``, ``[positions, dim / 2]``.

        Position times frequency is also rounded to float32: that is what the model was trained with.
        """
        positions = np.arange(start, stop, dtype=np.float32)
        return (positions[:, None] * self.frequencies()).astype(np.float64)

    def cos(self, start: int, stop: int) -> Array:
        """What the table of cosines holds for positions ``[start, stop)``, ``[positions, dim / 2]``."""
        return np.cos(self.angles(start, stop)) * self._attention_factor

    def sin(self, start: int, stop: int) -> Array:
        """What the table of sines holds for positions ``[start, stop)``, ``[positions, dim / 2]``."""
        return np.sin(self.angles(start, stop)) * self._attention_factor

    @property
    def _attention_factor(self) -> float:
        return self.yarn.attention_factor if self.yarn else 1.0
