"""The quantised sparse MLA with its states in Triton: the kernels of quantised MLA."""

from __future__ import annotations

import torch

from ascend_attention.ops.quantized_mla.kernels import over_records
from ascend_attention.ops.sparse_mla_states.reference import located


def quantized_mla_states(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.quantized_mla_states.quantized_mla_states`."""
    out = torch.empty(query_latent.shape, dtype=query_latent.dtype, device=query_latent.device)
    lse = torch.empty(query_latent.shape[:2], dtype=torch.float32, device=query_latent.device)
    if not selected.shape[1] or not block_table.numel():
        return out.zero_(), lse.fill_(float("-inf"))
    place = located(selected, block_table, request, cache.shape[1])
    over_records(query_latent, query_rope, cache, *place, scale, out, lse)
    return out, lse
