"""Definition of quantised rows and of the attention over them, for any device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from ascend_ops_core.ops.quantization import dynamic_quantize

from ascend_attention.ops.quantized_mla.layout import GROUP, rotated_part, scales_part
from ascend_attention.ops.sparse_mla.reference import attend, located


def quantize_mla_rows(
    cache: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> None:
    """See :func:`ascend_attention.ops.quantized_mla.quantize_mla_rows`."""
    width, turned = latent.shape[1], rope.shape[1]
    values, scales = dynamic_quantize(latent.unflatten(1, (-1, GROUP)), torch.int8)
    real = (block >= 0) & (offset >= 0)
    at = block[real].long(), offset[real].long()
    cache[..., :width][at] = values.flatten(1)[real]
    rotated_part(cache, width, turned)[at] = rope[real].to(torch.bfloat16)
    scales_part(cache, width, turned)[at] = scales[real]


def quantized_sparse_mla(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.quantized_mla.quantized_sparse_mla`."""
    if not selected.shape[1] or not block_table.numel():
        return torch.zeros_like(query_latent)
    rows = dequantised_rows(cache, query_latent, query_rope)
    place = located(selected, block_table, query_ends, seq_lens, cache.shape[1])
    return attend(query_latent, query_rope, rows, *place, scale)


def dequantised_rows(
    cache: torch.Tensor, query_latent: torch.Tensor, query_rope: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """What reads float32 latents and rotated values at places, zeros where a block is negative.

    Args:
        cache: ``[B, P, row_bytes(L, R)]`` int8.
        query_latent: ``[T, H, L]``; latents are rounded to its dtype.
        query_rope: ``[T, H, R]``.
    """
    width, turned = query_latent.shape[2], query_rope.shape[2]
    rotated = rotated_part(cache, width, turned)
    scales = scales_part(cache, width, turned)

    def rows(block: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        real = (block >= 0).unsqueeze(-1)
        at = torch.where(real[..., 0], block, 0).long(), torch.where(real[..., 0], offset, 0).long()
        factor = scales[at].repeat_interleave(GROUP, -1)
        # The kernels multiply in the query's dtype.
        latent = (cache[..., :width][at].float() * factor).to(query_latent.dtype).float()
        return torch.where(real, latent, 0.0), torch.where(real, rotated[at].float(), 0.0)

    return rows
