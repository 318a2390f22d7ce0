"""Definition of the quantised sparse MLA with its states, for any device."""

from __future__ import annotations

import torch

from ascend_attention.ops.quantized_mla.reference import dequantised_rows
from ascend_attention.ops.sparse_mla_states.reference import attend_with_states, located


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
    if not block_table.numel():
        selected = selected[:, :0]
    rows = dequantised_rows(cache, query_latent, query_rope)
    place = located(selected, block_table, request, cache.shape[1])
    return attend_with_states(query_latent, query_rope, rows, *place, scale)
