"""The sparse MLA with its states in Triton: the kernels of sparse MLA, which keep peak and sum."""

from __future__ import annotations

import torch

from ascend_attention.ops.sparse_mla.kernels import over_rows
from ascend_attention.ops.sparse_mla_states.reference import located


def sparse_mla_states(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.sparse_mla_states.sparse_mla_states`."""
    out = torch.empty(query_latent.shape, dtype=query_latent.dtype, device=query_latent.device)
    lse = torch.empty(query_latent.shape[:2], dtype=torch.float32, device=query_latent.device)
    if not selected.shape[1] or not block_table.numel():
        return out.zero_(), lse.fill_(float("-inf"))
    place = located(selected, block_table, request, latent_cache.shape[1])
    over_rows(query_latent, query_rope, latent_cache, rope_cache, *place, scale, out, lse)
    return out, lse
