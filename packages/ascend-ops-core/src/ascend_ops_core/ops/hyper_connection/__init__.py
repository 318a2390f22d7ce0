"""Manifold-constrained hyper-connections (mHC, Xie et al., 2026; DeepSeek-V4 section 2.2).

The residual is ``n`` parallel streams ``[T, n, H]``. Before a block the streams are collapsed to
one, after it the block's output is spread over the streams while a doubly stochastic matrix
mixes them. All weights are computed from the streams themselves, in float32.
"""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.hyper_connection import reference
from ascend_ops_core.ops.hyper_connection.plan import HyperConnectionPlan
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.hyper_connection.cpu")

__all__ = ["HyperConnectionPlan", "hc_head", "hc_post", "hc_pre", "sinkhorn"]


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
    collapsed, post, comb = _HC_PRE(
        streams, fn, scale, base, sinkhorn_iters, hc_eps, norm_eps, norm_weight
    )
    return collapsed, HyperConnectionPlan(post, comb)


def hc_post(output: torch.Tensor, streams: torch.Tensor, plan: HyperConnectionPlan) -> torch.Tensor:
    """Spread a block's output over the streams and mix them.

    Args:
        output: ``[T, H]``.
        streams: ``[T, n, H]``, the block's input streams.
        plan: from :func:`hc_pre`.

    Returns:
        ``[T, n, H]`` in the streams' dtype: ``post[k] * output + sum_j comb[j, k] * streams[j]``.
    """
    result: torch.Tensor = _HC_POST(output, streams, *plan)
    return result


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
    result: torch.Tensor = _HC_HEAD(streams, fn, scale, base, hc_eps, norm_eps)
    return result


def sinkhorn(logits: torch.Tensor, *, iters: int, eps: float) -> torch.Tensor:
    """Make matrices nearly doubly stochastic, as :func:`hc_pre` does with its ``comb``.

    The softmax of each row plus ``eps``; then columns, and ``iters - 1`` times rows and columns,
    are divided by their sum plus ``eps``.

    Args:
        logits: ``[..., n, n]`` float32; may be empty.
        iters: times that the columns are normalised, at least 1.
        eps: floor of the weights and of the divisions.

    Returns:
        As ``logits``.

    Raises:
        InvalidInputError: matrices that are not square, or no iteration.
    """
    if logits.dim() < 2 or logits.shape[-1] != logits.shape[-2]:
        raise InvalidInputError(
            f"logits of shape {list(logits.shape)}", "they are square matrices", "Unflatten them."
        )
    if iters < 1:
        raise InvalidInputError(f"iters={iters}", "it is at least 1", "Check the config.")
    result: torch.Tensor = _SINKHORN(logits, iters, eps)
    return result


def _hc_pre_cpu(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    arguments = (streams, fn, scale, base, sinkhorn_iters, hc_eps, norm_eps, norm_weight)
    kernels = _cpu.usable(streams, fn, scale, base, norm_weight)
    if kernels is not None and kernels.supports(streams, fn, scale, base, norm_weight):
        collapsed, plan = kernels.hc_pre(*arguments)
        return collapsed, *plan
    return reference.hc_pre(*arguments)


def _hc_post_cpu(
    output: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    kernels = _cpu.usable(output, streams, post, comb)
    if (
        kernels is not None
        and kernels.supports(streams, post, comb)
        and output.dtype == streams.dtype
    ):
        return kernels.hc_post(output, streams, HyperConnectionPlan(post, comb))
    return reference.hc_post(output, streams, post, comb)


def _hc_head_cpu(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    hc_eps: float,
    norm_eps: float,
) -> torch.Tensor:
    kernels = _cpu.usable(streams, fn, scale, base)
    if kernels is not None and kernels.supports_head(streams, fn, scale, base):
        result: torch.Tensor = kernels.hc_head(streams, fn, scale, base, hc_eps, norm_eps)
        return result
    return reference.hc_head(streams, fn, scale, base, hc_eps, norm_eps)


def _collapsed(streams: torch.Tensor) -> torch.Tensor:
    tokens, _, hidden = streams.shape
    return torch.empty((tokens, hidden), dtype=streams.dtype, device=streams.device)


def _fake_hc_pre(
    streams: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, n, _ = streams.shape
    post = torch.empty((tokens, n), dtype=torch.float32, device=streams.device)
    comb = torch.empty((tokens, n, n), dtype=torch.float32, device=streams.device)
    return _collapsed(streams), post, comb


_HC_PRE = declare(
    __name__,
    "hc_pre(Tensor streams, Tensor fn, Tensor scale, Tensor base, int sinkhorn_iters,"
    " float hc_eps, float norm_eps, Tensor norm_weight) -> (Tensor, Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=_fake_hc_pre,
    cpu=_hc_pre_cpu,
)

_HC_POST = declare(
    __name__,
    "hc_post(Tensor output, Tensor streams, Tensor post, Tensor comb) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda output, streams, post, comb: torch.empty_like(
        streams, memory_format=torch.contiguous_format
    ),
    cpu=_hc_post_cpu,
)

_HC_HEAD = declare(
    __name__,
    "hc_head(Tensor streams, Tensor fn, Tensor scale, Tensor base, float hc_eps, float norm_eps)"
    " -> Tensor",
    npu=("triton",),
    fake=lambda streams, *rest: _collapsed(streams),
    cpu=_hc_head_cpu,
)

_SINKHORN = declare(
    __name__,
    "sinkhorn(Tensor logits, int iters, float eps) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda logits, iters, eps: torch.empty_like(logits, memory_format=torch.contiguous_format),
)
