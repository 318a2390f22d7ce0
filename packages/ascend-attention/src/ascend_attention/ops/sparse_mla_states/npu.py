"""Limits of the sparse MLA with its states on NPUs.

``npu_sparse_flash_attention`` can give a softmax's peak and sum, but its documentation states
neither their layout nor what a query without any row gives, so there is no adaptor. Not run on
hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support

from ascend_attention.ops.sparse_mla.npu import supports_sparse_mla_triton


def supports_sparse_mla_states_triton(
    facts: DeviceFacts,
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    scale: float,
) -> Support:
    """As the sparse MLA."""
    return supports_sparse_mla_triton(
        facts,
        query_latent,
        query_rope,
        latent_cache,
        rope_cache,
        selected,
        block_table,
        request,
        request,
        scale,
    )
