"""The operator behind which a layer's attention is opaque to torch.compile and to graphs."""

from __future__ import annotations

import torch
from vllm.forward_context import get_forward_context
from vllm.utils.torch_utils import direct_register_custom_op

from ascend_attention.layers.qkv_indexer import QKVIndexerParts

__all__ = ["minimax_m3_sparse_forward"]


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    index_query: torch.Tensor | None,
    index_key: torch.Tensor | None,
    out: torch.Tensor,
    layer_name: str,
) -> None:
    cache = get_forward_context().no_compile_layers[layer_name]
    cache.impl.forward(QKVIndexerParts(query, key, value, index_query, index_key), out)


def _fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    index_query: torch.Tensor | None,
    index_key: torch.Tensor | None,
    out: torch.Tensor,
    layer_name: str,
) -> None:
    return None


def minimax_m3_sparse_forward(parts: QKVIndexerParts, layer_name: str) -> torch.Tensor:
    """Attention of one layer, by the name of its cache of keys and values.

    Args:
        parts: normed and rotated, ``query [T, h, D]`` and the others; caches are written.
        layer_name: of a layer of the engine that runs.

    Returns:
        ``[T, h, D]``.
    """
    out = torch.empty_like(parts.query, memory_format=torch.contiguous_format)
    torch.ops.vllm.minimax_m3_sparse_forward(*parts, out, layer_name)
    return out


direct_register_custom_op(
    op_name="minimax_m3_sparse_forward",
    op_func=_forward,
    mutates_args=["out"],
    fake_impl=_fake,
)
