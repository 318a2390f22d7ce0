"""Definition of what MLA caches of a token."""

from __future__ import annotations

import torch


def kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    interleaved: bool,
    split: bool,
) -> None:
    """See :func:`ascend_attention.ops.mla_cache.kv_rmsnorm_rope_cache`."""
    real = (block >= 0) & (offset >= 0)
    where = block[real].long(), offset[real].long()
    latent, rope = kv[real].float().split([weight.shape[0], 2 * cos.shape[1]], dim=-1)
    normed = latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + eps) * weight
    # One (first, second) pair for each angle, whichever way the channels are laid out.
    axis = -1 if interleaved else -2
    shape = (cos.shape[1], 2) if interleaved else (2, cos.shape[1])
    first, second = rope.unflatten(-1, shape).unbind(axis)
    c, s = cos[real], sin[real]
    rotated = torch.stack(
        [first * c - second * s, second * c + first * s], dim=-2 if split else axis
    ).flatten(-2)
    latents[where] = normed.to(latents.dtype)
    ropes[where] = rotated.to(ropes.dtype)
