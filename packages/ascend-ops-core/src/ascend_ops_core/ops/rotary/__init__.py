"""Rotary position embedding (Su et al., 2021): partial, interleaved or half-split, invertible.

``cos`` and ``sin`` always come with one entry per rotated pair, ``[T, R / 2]`` in float32, where
``R`` is the number of rotated channels. The other channels pass through bit for bit.
"""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import reference
from ascend_ops_core.ops.rotary.frequencies import (
    YarnScaling,
    rotary_dim_of,
    rotary_frequencies,
)

_cpu = CpuKernels("ascend_ops_core.ops.rotary.cpu")

__all__ = [
    "YarnScaling",
    "apply_rotary",
    "rms_norm_rotary",
    "rotary_dim_of",
    "rotary_frequencies",
]


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = True,
    at_end: bool = False,
    inverse: bool = False,
) -> torch.Tensor:
    """Rotate ``R`` channels of every head.

    Args:
        x: ``[T, H, D]``, any float dtype, ``D >= R``.
        cos: ``[T, R / 2]`` float32.
        sin: ``[T, R / 2]`` float32.
        interleaved: pairs are channels ``(0, 1), (2, 3), ...`` (DeepSeek) rather than
            ``(i, i + R / 2)`` (NeoX).
        at_end: the rotated channels are the last ``R`` (DeepSeek-V4) rather than the first.
        inverse: rotate by the negative angle.

    Returns:
        ``[T, H, D]`` in ``x.dtype``, computed in float32.

    Raises:
        InvalidInputError: ``R`` exceeds ``D``, ``T`` differs between ``x`` and ``cos``, or a table
            is not float32.
    """
    _check(x, cos, sin)
    kernels = _cpu.usable(x, cos, sin)
    if kernels is not None and kernels.supports(x, None, interleaved, at_end):
        return kernels.rotary(x, cos, sin, inverse)
    return reference.apply_rotary(
        x, cos, sin, interleaved=interleaved, at_end=at_end, inverse=inverse
    )


def rms_norm_rotary(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """RMS norm over each head, then interleaved rotation of its last ``R`` channels.

    This is what DeepSeek-V4 does to query heads (no weight) and to its single key-value head.

    Args:
        x: ``[T, H, D]``.
        weight: ``[D]`` float32 or None.
        eps: added to the mean square.
        cos: ``[T, R / 2]`` float32.
        sin: ``[T, R / 2]`` float32.

    Returns:
        ``[T, H, D]`` in ``x.dtype``.
    """
    _check(x, cos, sin)
    kernels = _cpu.usable(x, weight, cos, sin)
    if kernels is not None and kernels.supports(x, weight, True, True):
        return kernels.rms_norm_rotary(x, weight, eps, cos, sin)
    return reference.rms_norm_rotary(x, weight, eps, cos, sin)


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    if cos.dtype != torch.float32 or sin.dtype != torch.float32:
        raise InvalidInputError(
            f"cos of {cos.dtype} and sin of {sin.dtype}",
            "angles are float32 whatever the dtype of the heads",
            "Pass the rows of a float32 table.",
        )
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise InvalidInputError(
            f"rotary dimension {2 * cos.shape[-1]}",
            f"a head has only {x.shape[-1]} channels",
            "Use a rotary dimension of at most the head size.",
        )
    if cos.shape != sin.shape or cos.shape[0] != x.shape[0]:
        raise InvalidInputError(
            f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)}",
            f"both need one row for each of the {x.shape[0]} tokens",
            "Gather cos and sin by the positions of these tokens.",
        )
