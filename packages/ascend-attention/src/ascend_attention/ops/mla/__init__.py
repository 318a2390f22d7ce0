"""What stands around DeepSeek-V4's attention: query and key-value prologue, output epilogue.

Both are chains of small products, norms and rotations that a decode step runs in every layer.
Shapes: T tokens, H hidden size, L query rank, h heads, D head width, G output groups.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.ops.mla import reference
from ascend_attention.ops.mla.prologue import Prologue

_cpu = CpuKernels("ascend_attention.ops.mla.cpu")

__all__ = ["Prologue", "mla_epilogue", "mla_prologue"]


def mla_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> Prologue:
    """Query latent, queries, and key-value rows.

    Args:
        hidden: ``[T, H]``.
        wqa_wkv: ``[L + D, H]``, rows of the query latent before those of the key-value row.
        wq_b: ``[h * D, L]``.
        q_norm: ``[L]`` float32, norm of the latent.
        kv_norm: ``[D]`` float32, norm of the key-value row; query heads are normed without weight.
        eps: epsilon of all norms.
        cos: ``[T, R / 2]`` float32; queries and rows are rotated in their last ``R`` channels.
        sin: the same shape.
    """
    kernels = _cpu.usable(hidden, wqa_wkv, wq_b, q_norm, kv_norm, cos, sin)
    if kernels is not None and kernels.supports(
        hidden, (hidden, wqa_wkv, wq_b), (q_norm, kv_norm, cos, sin)
    ):
        return kernels.mla_prologue(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin)
    return reference.mla_prologue(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin)


def mla_epilogue(
    attended: torch.Tensor,
    wo_a: torch.Tensor,
    wo_b: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """Inverse rotation, then the grouped low-rank output projection.

    Rows are key and value at once, so what attention returns still carries the keys' rotation.

    Args:
        attended: ``[T, h, D]``.
        wo_a: ``[G, N, h / G * D]``.
        wo_b: ``[H, G * N]``.
        cos: ``[T, R / 2]`` float32, as in the prologue.
        sin: the same shape.

    Returns:
        ``[T, H]``.
    """
    kernels = _cpu.usable(attended, wo_a, wo_b, cos, sin)
    if kernels is not None and kernels.supports(attended, (attended, wo_a, wo_b), (cos, sin)):
        return kernels.mla_epilogue(attended, wo_a, wo_b, cos, sin)
    return reference.mla_epilogue(attended, wo_a, wo_b, cos, sin)
