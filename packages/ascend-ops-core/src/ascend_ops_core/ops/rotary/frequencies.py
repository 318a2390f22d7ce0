"""Rotary frequencies: plain and YaRN (Peng et al., 2023), and which channels are rotated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ascend_ops_core.errors import InvalidInputError


@dataclass(frozen=True)
class YarnScaling:
    """YaRN context extension.

    Attributes:
        factor: context extension factor.
        original_max_position: context length that the model was trained with, in tokens.
        beta_fast: rotations over the original context above which a channel keeps its frequency.
        beta_slow: rotations below which a channel's frequency is divided by ``factor``.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        """Refuse figures for which the ramp is not defined."""
        for name in ("factor", "original_max_position", "beta_fast", "beta_slow"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidInputError(
                    f"YaRN {name}={value}", "it must be positive", "Correct rope_scaling."
                )


def rotary_dim_of(
    head_dim: int, *, rotary_dim: int | None = None, partial_rotary_factor: float | None = None
) -> int:
    """Number of rotated channels from either spelling that configs use.

    Raises:
        InvalidInputError: the two spellings disagree, or the result is odd or exceeds
            ``head_dim``.
    """
    by_factor = None if partial_rotary_factor is None else int(head_dim * partial_rotary_factor)
    if rotary_dim is not None and by_factor is not None and rotary_dim != by_factor:
        raise InvalidInputError(
            f"rotary_dim={rotary_dim} with partial_rotary_factor={partial_rotary_factor}",
            f"the factor gives {by_factor} of {head_dim} channels",
            "Keep one of the two in the config, or make them agree.",
        )
    given = by_factor if rotary_dim is None else rotary_dim
    result = head_dim if given is None else given
    if result <= 0 or result > head_dim or result % 2:
        raise InvalidInputError(
            f"rotary dimension {result}",
            f"it must be even and between 2 and the head size {head_dim}",
            "Correct rotary_dim or partial_rotary_factor in the config.",
        )
    return result


def rotary_frequencies(
    rotary_dim: int, theta: float, yarn: YarnScaling | None = None
) -> torch.Tensor:
    """Angular frequency of every rotated pair, in radians per token.

    Args:
        rotary_dim: number of rotated channels, even.
        theta: base of the geometric progression.
        yarn: scaling for contexts beyond the trained one.

    Returns:
        ``[rotary_dim / 2]`` float32.
    """
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    plain = 1.0 / theta**exponent
    if yarn is None:
        return plain
    low = math.floor(_channel_of(yarn.beta_fast, rotary_dim, theta, yarn.original_max_position))
    high = math.ceil(_channel_of(yarn.beta_slow, rotary_dim, theta, yarn.original_max_position))
    low, high = max(low, 0), min(high, rotary_dim - 1)
    # Equal bounds would divide by zero; the paper's code widens the ramp by this much too.
    width = max(high - low, 0.001)
    pair = torch.arange(rotary_dim // 2, dtype=torch.float32)
    stretched = ((pair - low) / width).clamp(0, 1)
    return plain / yarn.factor * stretched + plain * (1 - stretched)


def _channel_of(rotations: float, rotary_dim: int, theta: float, context: int) -> float:
    """Pair index whose channel turns ``rotations`` times over ``context`` tokens."""
    return rotary_dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))
