"""The learned parameters of manifold-constrained hyper-connections."""

from __future__ import annotations

import torch
from torch import nn

from ascend_ops_core.ops.hyper_connection import HyperConnectionPlan, hc_head, hc_post, hc_pre


def _float32(*shape: int) -> nn.Parameter:
    # Engines build models under another default dtype; these weights are float32 in every model.
    return nn.Parameter(torch.empty(*shape, dtype=torch.float32), requires_grad=False)


class HyperConnection(nn.Module):
    """One collapse and expansion of the residual streams around a block.

    Args:
        streams: number of streams ``n``.
        hidden_size: ``H``.
        sinkhorn_iters: see :func:`ascend_ops_core.ops.hyper_connection.hc_pre`.
        hc_eps: the same.
        norm_eps: the same.

    Attributes:
        fn: ``[(2 + n) * n, n * H]`` float32.
        scale: ``[3]`` float32.
        base: ``[(2 + n) * n]`` float32.
    """

    def __init__(
        self, streams: int, hidden_size: int, sinkhorn_iters: int, hc_eps: float, norm_eps: float
    ) -> None:
        super().__init__()
        self.sinkhorn_iters = sinkhorn_iters
        self.hc_eps = hc_eps
        self.norm_eps = norm_eps
        mixes = (2 + streams) * streams
        self.fn = _float32(mixes, streams * hidden_size)
        self.scale = _float32(3)
        self.base = _float32(mixes)

    def pre(
        self, streams: torch.Tensor, norm_weight: torch.Tensor
    ) -> tuple[torch.Tensor, HyperConnectionPlan]:
        """The block's normed input ``[T, H]`` from ``streams [T, n, H]``, and the way back."""
        return hc_pre(
            streams,
            self.fn,
            self.scale,
            self.base,
            sinkhorn_iters=self.sinkhorn_iters,
            hc_eps=self.hc_eps,
            norm_eps=self.norm_eps,
            norm_weight=norm_weight,
        )

    @staticmethod
    def post(
        output: torch.Tensor, streams: torch.Tensor, plan: HyperConnectionPlan
    ) -> torch.Tensor:
        """New streams ``[T, n, H]`` from the block's output ``[T, H]``."""
        return hc_post(output, streams, plan)


class HyperHead(nn.Module):
    """Final collapse of the streams.

    Args:
        streams: number of streams ``n``.
        hidden_size: ``H``.
        hc_eps: see :func:`ascend_ops_core.ops.hyper_connection.hc_head`.
        norm_eps: the same.

    Attributes:
        fn: ``[n, n * H]`` float32.
        scale: ``[1]`` float32.
        base: ``[n]`` float32.
    """

    def __init__(self, streams: int, hidden_size: int, hc_eps: float, norm_eps: float) -> None:
        super().__init__()
        self.hc_eps = hc_eps
        self.norm_eps = norm_eps
        self.fn = _float32(streams, streams * hidden_size)
        self.scale = _float32(1)
        self.base = _float32(streams)

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``[T, n, H]``."""
        return hc_head(
            streams, self.fn, self.scale, self.base, hc_eps=self.hc_eps, norm_eps=self.norm_eps
        )
