"""Attention residuals (Kimi-K3): a block's input is a learned mixture of the stream's past sums.

The residual stream is cut into blocks of layers. A source is the sum at the end of each finished
block, and the running sum of the block at work. In front of attention, of the feed-forward block
and of the head, the sources are mixed with weights that each of them earns by its own direction.
"""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.ops.attention_residual import reference
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.attention_residual.cpu")

__all__ = ["add_attn_res", "attn_res"]


def attn_res(
    prefix: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """``sum_j softmax(l)_j s_j`` over the sources, ``l_j = <norm_weight * proj, s_j / rms(s_j)>``.

    The formula of vLLM 0.27.1's ``vllm.models.kimi_k3``: the norm shapes the weights alone, the
    sources are mixed as they are. Without blocks it is ``prefix``.

    Args:
        prefix: ``[T, H]``, the last source; ``T`` may be 0. float32, bfloat16 or float16.
        blocks: ``[n, T, H]`` in the same dtype, the other sources; ``n`` may be 0.
        norm_weight: ``[H]`` of any float dtype, weight of the norm.
        proj: ``[H]`` of any float dtype, the projection to a score.
        eps: added to the mean square.

    Returns:
        ``[T, H]`` in ``prefix.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: tensors that do not belong together.
    """
    _check(prefix, blocks, norm_weight, proj)
    result: torch.Tensor = _ATTN_RES(prefix, blocks, norm_weight, proj, eps)
    return result


def add_attn_res(
    prefix: torch.Tensor,
    update: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`attn_res` of the running sum after an addition.

    Args:
        prefix: ``[T, H]``, the running sum so far.
        update: ``[T, H]`` in the same dtype, what the last block gave.
        blocks: see :func:`attn_res`.
        norm_weight: the same.
        proj: the same.
        eps: the same.

    Returns:
        The mixture, and ``prefix + update`` rounded to its dtype, which is what was mixed; both
        ``[T, H]``.

    Raises:
        InvalidInputError: tensors that do not belong together.
    """
    _check(prefix, blocks, norm_weight, proj)
    require_shape("update", update, *prefix.shape)
    require_dtype("update", update, (prefix.dtype,))
    mixed, total = _ADD_ATTN_RES(prefix, update, blocks, norm_weight, proj, eps)
    return mixed, total


def _check(
    prefix: torch.Tensor, blocks: torch.Tensor, norm_weight: torch.Tensor, proj: torch.Tensor
) -> None:
    require_shape("prefix", prefix, None, None)
    require_dtype("prefix", prefix, FLOATS)
    require_shape("blocks", blocks, None, *prefix.shape)
    require_dtype("blocks", blocks, (prefix.dtype,))
    require_shape("norm_weight", norm_weight, prefix.shape[1])
    require_shape("proj", proj, prefix.shape[1])


def _attn_res_cpu(
    prefix: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    kernels = _cpu.usable(prefix, blocks, norm_weight, proj)
    if kernels is not None and kernels.supports(prefix, blocks):
        mixed: torch.Tensor = kernels.attn_res(prefix, None, blocks, norm_weight, proj, eps)[0]
        return mixed
    return reference.attn_res(prefix, blocks, norm_weight, proj, eps)


def _add_attn_res_cpu(
    prefix: torch.Tensor,
    update: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    kernels = _cpu.usable(prefix, update, blocks, norm_weight, proj)
    if kernels is not None and kernels.supports(prefix, blocks) and update.is_contiguous():
        both: tuple[torch.Tensor, torch.Tensor] = kernels.attn_res(
            prefix, update, blocks, norm_weight, proj, eps
        )
        return both
    return reference.add_attn_res(prefix, update, blocks, norm_weight, proj, eps)


def _like(prefix: torch.Tensor) -> torch.Tensor:
    return torch.empty(prefix.shape, dtype=prefix.dtype, device=prefix.device)


_ATTN_RES = declare(
    __name__,
    "attn_res(Tensor prefix, Tensor blocks, Tensor norm_weight, Tensor proj, float eps) -> Tensor",
    npu=("triton",),
    fake=lambda prefix, *rest: _like(prefix),
    cpu=_attn_res_cpu,
)

_ADD_ATTN_RES = declare(
    __name__,
    "add_attn_res(Tensor prefix, Tensor update, Tensor blocks, Tensor norm_weight, Tensor proj,"
    " float eps) -> (Tensor, Tensor)",
    npu=("triton",),
    fake=lambda prefix, *rest: (_like(prefix), _like(prefix)),
    cpu=_add_attn_res_cpu,
)
