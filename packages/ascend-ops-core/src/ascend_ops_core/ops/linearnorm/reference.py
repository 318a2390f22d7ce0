"""Definitions of split, norm and rotation of a fused QKV projection."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.rotary_table import reference as rotary_table

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def split_qkv_rmsnorm_rope(
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    gated: bool,
) -> _Parts:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_rmsnorm_rope`."""
    query, key, value, gate = _split(qkv, q_heads, kv_heads, head_dim, gated)
    cos, sin = cos_sin_cache[positions.long()].float().chunk(2, dim=-1)
    query = _rotated(_normed(query, q_weight, q_bias, eps), cos, sin)
    key = _rotated(_normed(key, k_weight, k_bias, eps), cos, sin)
    return _joined(qkv, query, key, value, gate)


def split_qkv_rmsnorm_mrope(
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    sections: list[int],
    interleaved: bool,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    gated: bool,
) -> _Parts:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_rmsnorm_mrope`."""
    query, key, value, gate = _split(qkv, q_heads, kv_heads, head_dim, gated)
    cos, sin = cos_sin_cache.float().chunk(2, dim=-1)
    cos, sin = rotary_table.mrope_cos_sin(cos, sin, positions, sections, interleaved)
    query = _rotated(_normed(query, q_weight, q_bias, eps), cos, sin)
    key = _rotated(_normed(key, k_weight, k_bias, eps), cos, sin)
    return _joined(qkv, query, key, value, gate)


def split_qkv_tp_variance(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, head_dim: int, kv_replicas: int
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_tp_variance`."""
    query, key, _, _ = _split(qkv, q_heads, kv_heads, head_dim, False)
    of_query = query.float().square().sum((1, 2))
    of_key = key.float().square().sum((1, 2)) / kv_replicas
    return torch.stack((of_query, of_key))


def split_qkv_tp_apply(
    qkv: torch.Tensor,
    sums: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    total_q_heads: int,
    total_kv_heads: int,
    eps: float,
) -> _Parts:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_tp_apply`."""
    query, key, value, gate = _split(qkv, q_heads, kv_heads, head_dim, False)
    cos, sin = cos_sin_cache[positions.long()].float().chunk(2, dim=-1)
    of_query, of_key = sums[:, :, None, None]
    scale = torch.rsqrt(of_query / (total_q_heads * head_dim) + eps)
    query = query.float() * scale * q_weight.float().view(q_heads, head_dim)
    scale = torch.rsqrt(of_key / (total_kv_heads * head_dim) + eps)
    key = key.float() * scale * k_weight.float().view(kv_heads, head_dim)
    return _joined(qkv, _rotated(query, cos, sin), _rotated(key, cos, sin), value, gate)


def _split(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, head_dim: int, gated: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key, value and gate as ``[T, H, D]``."""
    queries = q_heads * (2 if gated else 1)
    heads = qkv.unflatten(-1, (-1, head_dim))
    query, key, value = heads.split([queries, kv_heads, kv_heads], dim=1)
    if gated:
        return query[:, 0::2], key, value, query[:, 1::2]
    return query, key, value, query[:, :0]


def _normed(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """RMS norm of every head, in float32."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    return y if bias is None else y + bias.float()


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Half-split rotation of the first channels of float32 heads, not rounded."""
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * c - second * s, second * c + first * s, rest), dim=-1)


def _joined(qkv: torch.Tensor, *parts: torch.Tensor) -> _Parts:
    """Heads side by side again, in the projection's dtype."""
    query, key, value, gate = (part.to(qkv.dtype).flatten(1).contiguous() for part in parts)
    return query, key, value, gate
