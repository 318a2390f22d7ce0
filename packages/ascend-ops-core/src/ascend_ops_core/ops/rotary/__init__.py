"""Rotary position embedding (Su et al., 2021): partial, interleaved or half-split, invertible.

``cos`` and ``sin`` come with one entry per rotated pair, ``[T, R / 2]``, where ``R`` is the number
of rotated channels. The other channels pass through bit for bit. Both are float32, or both bfloat16
or float16, whatever the dtype of the heads: a 16-bit table halves what is read of it, and has every
angle's cosine and sine rounded before the rotation, which is computed in float32 all the same.
"""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS, require_dtype
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import reference
from ascend_ops_core.ops.rotary.frequencies import (
    YarnScaling,
    dynamic_ntk_frequencies,
    linear_frequencies,
    rotary_dim_of,
    rotary_frequencies,
    yarn_attention_factor,
    yarn_mscale,
)
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.rotary.cpu")

__all__ = [
    "YarnScaling",
    "apply_rotary",
    "apply_rotary_qk",
    "dynamic_ntk_frequencies",
    "linear_frequencies",
    "rms_norm_rotary",
    "rotary_dim_of",
    "rotary_frequencies",
    "yarn_attention_factor",
    "yarn_mscale",
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
        cos: ``[T, R / 2]``, float32, bfloat16 or float16.
        sin: ``[T, R / 2]`` of the same dtype.
        interleaved: pairs are channels ``(0, 1), (2, 3), ...`` (DeepSeek) rather than
            ``(i, i + R / 2)`` (NeoX).
        at_end: the rotated channels are the last ``R`` (DeepSeek-V4) rather than the first.
        inverse: rotate by the negative angle.

    Returns:
        ``[T, H, D]`` in ``x.dtype``, computed in float32.

    Raises:
        InvalidInputError: ``R`` exceeds ``D``, ``T`` differs between ``x`` and ``cos``, or the
            tables are not of one float dtype.
    """
    _check(x, cos, sin)
    result: torch.Tensor = _APPLY_ROTARY(x, cos, sin, interleaved, at_end, inverse)
    return result


def apply_rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    at_end: bool = False,
    inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate query and key heads of the same tokens at once; see :func:`apply_rotary`.

    Args:
        q: ``[T, Hq, D]``, any float dtype, ``D >= R``.
        k: ``[T, Hk, D]`` of the same dtype.
        cos: ``[T, R / 2]``, float32, bfloat16 or float16.
        sin: ``[T, R / 2]`` of the same dtype.
        interleaved: pairs are channels ``(0, 1), (2, 3), ...`` rather than ``(i, i + R / 2)``,
            which is what most models with keys do.
        at_end: the rotated channels are the last ``R`` rather than the first.
        inverse: rotate by the negative angle.

    Returns:
        Both rotated, in their shapes and dtype.

    Raises:
        InvalidInputError: what :func:`apply_rotary` refuses, or ``q`` and ``k`` that differ in
            tokens, head size or dtype.
    """
    _check(q, cos, sin)
    _check(k, cos, sin)
    if q.dtype != k.dtype or q.shape[-1] != k.shape[-1]:
        raise InvalidInputError(
            f"q {tuple(q.shape)} of {q.dtype} and k {tuple(k.shape)} of {k.dtype}",
            "they have one head size and one dtype",
            "Rotate them one by one with apply_rotary().",
        )
    result: tuple[torch.Tensor, torch.Tensor] = _APPLY_ROTARY_QK(
        q, k, cos, sin, interleaved, at_end, inverse
    )
    return result


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
        cos: ``[T, R / 2]``, float32, bfloat16 or float16.
        sin: ``[T, R / 2]`` of the same dtype.

    Returns:
        ``[T, H, D]`` in ``x.dtype``.

    Raises:
        InvalidInputError: what :func:`apply_rotary` refuses.
    """
    _check(x, cos, sin)
    result: torch.Tensor = _RMS_NORM_ROTARY(x, weight, eps, cos, sin)
    return result


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    require_dtype("cos", cos, FLOATS)
    require_dtype("sin", sin, (cos.dtype,))
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


def _apply_rotary_cpu(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> torch.Tensor:
    kernels = _cpu.usable(x, cos, sin)
    if kernels is not None and kernels.supports(x):
        return kernels.rotary(x, cos, sin, interleaved, at_end, inverse)
    return reference.apply_rotary(x, cos, sin, interleaved, at_end, inverse)


def _apply_rotary_qk_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    rest = (cos, sin, interleaved, at_end, inverse)
    return _apply_rotary_cpu(q, *rest), _apply_rotary_cpu(k, *rest)


def _rms_norm_rotary_cpu(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    kernels = _cpu.usable(x, weight, cos, sin)
    if kernels is not None and kernels.supports(x, weight):
        return kernels.rms_norm_rotary(x, weight, eps, cos, sin)
    return reference.rms_norm_rotary(x, weight, eps, cos, sin)


def _like(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_APPLY_ROTARY = declare(
    __name__,
    "apply_rotary(Tensor x, Tensor cos, Tensor sin, bool interleaved, bool at_end, bool inverse)"
    " -> Tensor",
    npu=("torch_npu", "triton"),
    fake=_like,
    cpu=_apply_rotary_cpu,
)

_APPLY_ROTARY_QK = declare(
    __name__,
    "apply_rotary_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved, bool at_end,"
    " bool inverse) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda q, k, *_: (_like(q), _like(k)),
    cpu=_apply_rotary_qk_cpu,
)

_RMS_NORM_ROTARY = declare(
    __name__,
    "rms_norm_rotary(Tensor x, Tensor? weight, float eps, Tensor cos, Tensor sin) -> Tensor",
    npu=("triton",),
    fake=_like,
    cpu=_rms_norm_rotary_cpu,
)
