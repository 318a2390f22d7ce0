"""Limits of the quantised sparse MLA with its states on NPUs.

``npu_kv_quant_sparse_flash_attention`` returns no logarithms, so there is no adaptor. Not run on
hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support

from ascend_attention.ops.quantized_mla.npu import supports_quantized_sparse_mla_triton


def supports_quantized_mla_states_triton(
    facts: DeviceFacts,
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    scale: float,
) -> Support:
    """As the quantised sparse MLA."""
    return supports_quantized_sparse_mla_triton(
        facts, query_latent, query_rope, cache, selected, block_table, request, request, scale
    )
