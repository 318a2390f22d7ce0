"""Definition of the rotary embedding."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.norm import reference as norm


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.rotary.apply_rotary`."""
    rotary_dim = 2 * cos.shape[-1]
    passed = x.shape[-1] - rotary_dim
    rotated, kept = (
        (x[..., passed:], x[..., :passed]) if at_end else x.split([rotary_dim, passed], dim=-1)
    )
    c, s = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    if inverse:
        s = -s
    if interleaved:
        first, second = rotated[..., 0::2].float(), rotated[..., 1::2].float()
        turned = torch.stack((first * c - second * s, second * c + first * s), dim=-1).flatten(-2)
    else:
        first, second = rotated.float().chunk(2, dim=-1)
        turned = torch.cat((first * c - second * s, second * c + first * s), dim=-1)
    turned = turned.to(x.dtype)
    return torch.cat((kept, turned) if at_end else (turned, kept), dim=-1)


def apply_rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.rotary.apply_rotary_qk`."""
    rest = (cos, sin, interleaved, at_end, inverse)
    return apply_rotary(q, *rest), apply_rotary(k, *rest)


def rms_norm_rotary(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.rotary.rms_norm_rotary`."""
    normed = norm.rms_norm(x, weight, eps)
    return apply_rotary(normed, cos, sin, interleaved=True, at_end=True, inverse=False)
