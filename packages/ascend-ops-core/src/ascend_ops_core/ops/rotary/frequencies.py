"""Rotary frequencies: plain, linear, dynamic NTK and YaRN (Peng et al., 2023).

And which channels are rotated, and by how much YaRN scales cosine and sine.
"""

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


def linear_frequencies(rotary_dim: int, theta: float, factor: float) -> torch.Tensor:
    """Frequencies of position interpolation (Chen et al., 2023): all divided by ``factor``.

    Raises:
        InvalidInputError: ``factor`` is not positive.
    """
    _check_factor("linear", factor)
    return rotary_frequencies(rotary_dim, theta) / factor


def dynamic_ntk_frequencies(
    rotary_dim: int, theta: float, factor: float, trained: int, length: int
) -> torch.Tensor:
    """Frequencies whose base grows with a context beyond the trained one (dynamic NTK).

    Args:
        rotary_dim: number of rotated channels, even, above 2.
        theta: base within the trained context.
        factor: how fast the base grows.
        trained: positions that the model was trained with.
        length: positions in use; up to ``trained`` nothing changes.

    Raises:
        InvalidInputError: ``factor`` is not positive, or ``rotary_dim`` is 2.
    """
    _check_factor("dynamic NTK", factor)
    if rotary_dim <= 2:
        raise InvalidInputError(
            f"rotary dimension {rotary_dim}", "dynamic NTK needs 4 or more", "Use linear scaling."
        )
    grown = factor * max(length, trained) / trained - (factor - 1)
    return rotary_frequencies(rotary_dim, theta * grown ** (rotary_dim / (rotary_dim - 2)))


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """``0.1 * mscale * ln(factor) + 1``, and 1 where nothing is extended (YaRN, section 3.4)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def yarn_attention_factor(
    factor: float,
    *,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    attn_factor: float = 1.0,
) -> float:
    """What cosine and sine are multiplied with, so that scores keep their temperature.

    Args:
        factor: context extension factor.
        mscale: weight of the logarithm in DeepSeek's form; None for plain YaRN.
        mscale_all_dim: weight that DeepSeek's attention applies to whole scores already, and which
            is divided out here.
        attn_factor: further factor from the config.
    """
    if mscale is None and mscale_all_dim is None:
        return yarn_mscale(factor) * attn_factor
    whole = yarn_mscale(factor, 0.0 if mscale_all_dim is None else mscale_all_dim)
    return yarn_mscale(factor, 1.0 if mscale is None else mscale) / whole * attn_factor


def _check_factor(kind: str, factor: float) -> None:
    if not factor > 0:
        raise InvalidInputError(
            f"{kind} factor={factor}", "it must be positive", "Correct rope_scaling."
        )


def _channel_of(rotations: float, rotary_dim: int, theta: float, context: int) -> float:
    """Pair index whose channel turns ``rotations`` times over ``context`` tokens."""
    return rotary_dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))
