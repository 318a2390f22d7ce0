"""Manifold-constrained hyper-connections (mHC, Xie et al., 2026; DeepSeek-V4 section 2.2).

The residual is ``n`` parallel streams ``[T, n, H]``. Before a block the streams are collapsed to
one, after it the block's output is spread over the streams while a doubly stochastic matrix
mixes them. All weights are computed from the streams themselves, in float32.
"""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.ops.hyper_connection import reference
from ascend_ops_core.ops.hyper_connection.plan import HyperConnectionPlan

_cpu = CpuKernels("ascend_ops_core.ops.hyper_connection.cpu")

__all__ = ["HyperConnectionPlan", "hc_head", "hc_post", "hc_pre"]


def hc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, HyperConnectionPlan]:
    """Collapse the streams, apply the block's input norm, and plan the way back.

    Args:
        streams: ``[T, n, H]``.
        fn: ``[(2 + n) * n, n * H]`` float32, projection to the pre, post and comb weights.
        scale: ``[3]`` float32, one for each kind of weight.
        base: ``[(2 + n) * n]`` float32.
        sinkhorn_iters: alternating normalisations of ``comb``, at least 1.
        hc_eps: floor of the weights and of Sinkhorn's divisions.
        norm_eps: epsilon of both RMS norms.
        norm_weight: ``[H]`` float32, weight of the norm that the block applies to its input.

    Returns:
        The block's normed input ``[T, H]`` in the streams' dtype, and the plan for
        :func:`hc_post`.
    """
    kernels = _cpu.usable(streams, fn, scale, base, norm_weight)
    if kernels is not None and kernels.supports(streams, fn, scale, base, norm_weight):
        return kernels.hc_pre(
            streams, fn, scale, base, sinkhorn_iters, hc_eps, norm_eps, norm_weight
        )
    return reference.hc_pre(streams, fn, scale, base, sinkhorn_iters, hc_eps, norm_eps, norm_weight)


def hc_post(output: torch.Tensor, streams: torch.Tensor, plan: HyperConnectionPlan) -> torch.Tensor:
    """Spread a block's output over the streams and mix them.

    Args:
        output: ``[T, H]``.
        streams: ``[T, n, H]``, the block's input streams.
        plan: from :func:`hc_pre`.

    Returns:
        ``[T, n, H]`` in the streams' dtype: ``post[k] * output + sum_j comb[j, k] * streams[j]``.
    """
    kernels = _cpu.usable(output, streams, *plan)
    if kernels is not None and kernels.supports(streams, *plan) and output.dtype == streams.dtype:
        return kernels.hc_post(output, streams, plan)
    return reference.hc_post(output, streams, plan)


def hc_head(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    hc_eps: float,
    norm_eps: float,
) -> torch.Tensor:
    """Final collapse of the streams in front of the last norm.

    Args:
        streams: ``[T, n, H]``.
        fn: ``[n, n * H]`` float32.
        scale: ``[1]`` float32.
        base: ``[n]`` float32.
        hc_eps: floor of the weights.
        norm_eps: epsilon of the RMS norm of the flattened streams.

    Returns:
        ``[T, H]`` in the streams' dtype.
    """
    return reference.hc_head(streams, fn, scale, base, hc_eps, norm_eps)
