"""Manifold-constrained hyper-connections (mHC): several residual streams and their mixing.

Shapes: B batch, S tokens, M streams (``hc_mult``), D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tools.tiny_model.config import TinyConfig


def _normalise(m: torch.Tensor, dim: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = (m.sum(dim, keepdim=True) + eps).reciprocal()
    return m * inverse, inverse


class Sinkhorn(torch.autograd.Function):
    """Alternating column and row normalisation of positive matrices, ``iters`` times.

    Input and output are [M, M, N] with the tokens last, so that every step is a few long vector
    operations.  Written by hand because autograd would record four nodes for each of 39 steps.
    """

    @staticmethod
    def forward(ctx: Any, m: torch.Tensor, iters: int, eps: float) -> torch.Tensor:
        """Normalise over dimension 0, then ``iters - 1`` times over 1 and 0."""
        ctx.dims = [0] + [1, 0] * (iters - 1)
        tape = []
        for dim in ctx.dims:
            m, inverse = _normalise(m, dim, eps)
            tape += [m, inverse]
        ctx.save_for_backward(*tape)
        return m

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Walk the steps back; a step's output and its reciprocal sums are all that it needs."""
        tape = ctx.saved_tensors
        for i, dim in reversed(list(enumerate(ctx.dims))):
            out, inverse = tape[2 * i], tape[2 * i + 1]
            grad = (grad - (grad * out).sum(dim, keepdim=True)) * inverse
        return grad, None, None


def mix_weights(
    x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, cfg: TinyConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three weights of a connection for streams ``x`` [B, S, M, D].

    Returns (collapse weights [B, S, M], expansion weights [B, S, M], doubly stochastic mixing
    matrix [B, S, M, M] indexed (from, to)), all float32.
    """
    b, s, m, _ = x.shape
    flat = x.flatten(2)
    inverse_rms = torch.rsqrt(flat.square().mean(-1, keepdim=True) + cfg.rms_norm_eps)
    raw = F.linear(flat, fn) * inverse_rms
    pre, post, comb = raw.split([m, m, m * m], dim=-1)
    pre_base, post_base, comb_base = base.split([m, m, m * m])
    pre = torch.sigmoid(pre * scale[0] + pre_base) + cfg.hc_eps
    post = 2 * torch.sigmoid(post * scale[1] + post_base)
    comb = (comb * scale[2] + comb_base).view(b * s, m, m).permute(1, 2, 0).contiguous()
    comb = torch.softmax(comb, dim=1) + cfg.hc_eps
    comb = Sinkhorn.apply(comb, cfg.hc_sinkhorn_iters, cfg.hc_eps)
    return pre, post, comb.permute(2, 0, 1).reshape(b, s, m, m)


def collapse(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """Weighted sum of the streams: [B, S, M, D] and [B, S, M] to [B, S, D]."""
    return (pre.unsqueeze(-1) * x).sum(2)


def expand(
    x: torch.Tensor, y: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """Mix the streams ``x`` and add the block output ``y`` [B, S, D] to each: [B, S, M, D]."""
    mixed = post.unsqueeze(-1) * y.unsqueeze(2)
    for j in range(x.shape[2]):
        mixed = mixed + comb[:, :, j].unsqueeze(-1) * x[:, :, j].unsqueeze(2)
    return mixed


def head_weights(
    x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, cfg: TinyConfig
) -> torch.Tensor:
    """Collapse weights [B, S, M] of the connection before the output head."""
    flat = x.flatten(2)
    inverse_rms = torch.rsqrt(flat.square().mean(-1, keepdim=True) + cfg.rms_norm_eps)
    return torch.sigmoid(F.linear(flat, fn) * inverse_rms * scale + base) + cfg.hc_eps


def compile_kernels() -> None:
    """Let torch.compile fuse the stream mixing of this process, a third of a training step."""
    globals()["expand"] = torch.compile(expand, dynamic=False)
