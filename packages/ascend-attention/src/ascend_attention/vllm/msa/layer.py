"""MSAAttention: the projections, the indexer, the caches and the attention of one layer."""

from __future__ import annotations

import torch
from ascend_ops_core.communication import Group
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.rotary import apply_rotary
from ascend_ops_core.quantized_weights.weight import project
from torch import nn

from ascend_attention.caches import CacheRole
from ascend_attention.layers.qkv_indexer import (
    AscendMiniMaxM3IndexerLinear,
    QKVIndexerParts,
    QKVIndexerShape,
    QKVParallelLinearWithIndexer,
)
from ascend_attention.msa_caches import msa_caches
from ascend_attention.vllm.msa.cache_layers import (
    AscendMiniMaxM3IndexerCache,
    AscendMiniMaxM3KVCache,
)
from ascend_attention.vllm.msa.impl import AscendMiniMaxM3SparseImpl
from ascend_attention.vllm.msa.indexer import AscendMiniMaxM3Indexer
from ascend_attention.vllm.msa.op import minimax_m3_sparse_forward
from ascend_attention.vllm.msa.shapes import BlockSelectionShape


class MSAAttention(nn.Module):
    """GQA of one layer over the blocks that an indexer selects, or over all of them.

    Heads are normed one by one, with one weight for all of them, and rotated in their first
    channels (half-split).

    Args:
        shape: sizes of the projections.
        selection: of a layer with an indexer; None for a layer that attends to all blocks.
        norm_eps: epsilon of the heads' norms.
        dtype: the model's dtype.
        prefix: name of the layer, with its number.
        block_tokens: tokens of a block.
        device: device family of the caches.
        group: tensor-parallel ranks, which share the scores of decode steps; None for one.

    Attributes:
        qkv_proj: the projections.
        indexer_proj: those of the indexer where they are apart, else None.
        q_norm: ``[D]`` float32, factors of the norm of queries; the others are of keys, and of
            index queries and keys ``[Di]``, None in a layer without an indexer.
        o_proj: ``[H, h * D]``; this weight and the projections' may be quantised.
    """

    def __init__(
        self,
        shape: QKVIndexerShape,
        selection: BlockSelectionShape | None,
        norm_eps: float,
        dtype: torch.dtype,
        prefix: str,
        *,
        block_tokens: int,
        device: str = "cpu",
        group: Group | None = None,
    ) -> None:
        super().__init__()
        self.norm_eps = norm_eps
        self.qkv_proj = QKVParallelLinearWithIndexer(shape, dtype)
        self.indexer_proj: AscendMiniMaxM3IndexerLinear | None = None
        if shape.index_apart:
            self.indexer_proj = AscendMiniMaxM3IndexerLinear(shape, dtype)
        width = shape.num_heads * shape.head_dim
        self.o_proj = _empty(shape.hidden_size, width, dtype=dtype)
        self.q_norm, self.k_norm = _empty(shape.head_dim), _empty(shape.head_dim)
        self.index_q_norm = self.index_k_norm = None
        kinds = msa_caches(
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            index_head_dim=shape.index_head_dim,
            dtype=dtype,
            block_tokens=block_tokens,
            device=device,
        )
        self.layer_name = f"{prefix}.{CacheRole.KEY_VALUE}"
        self.cache = AscendMiniMaxM3KVCache(kinds[CacheRole.KEY_VALUE], self.layer_name)
        self.indexer: AscendMiniMaxM3Indexer | None = None
        if selection is not None:
            assert shape.index_head_dim == selection.head_dim
            self.index_q_norm = _empty(selection.head_dim)
            self.index_k_norm = _empty(selection.head_dim)
            role = CacheRole.INDEX_KEY
            keys = AscendMiniMaxM3IndexerCache(kinds[role], f"{self.layer_name}.{role}")
            self.indexer = AscendMiniMaxM3Indexer(selection, keys, group)
        scale = shape.head_dim**-0.5
        self.impl = self.cache.impl = AscendMiniMaxM3SparseImpl(self.cache, self.indexer, scale)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``[T, H]``, this rank's part of the sum over heads.

        Args:
            hidden: ``[T, H]`` normed input of the layer.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        parts = self.qkv_proj(hidden)
        if self.indexer_proj is not None:
            index_query, index_key = self.indexer_proj(hidden)
            parts = parts._replace(index_query=index_query, index_key=index_key)
        turned = parts._replace(
            query=self._turn(parts.query, self.q_norm, cos, sin),
            key=self._turn(parts.key, self.k_norm, cos, sin),
        )
        if self.indexer is not None:
            turned = turned._replace(
                index_query=self._turn(parts.index_query, self.index_q_norm, cos, sin),
                index_key=self._turn(parts.index_key, self.index_k_norm, cos, sin),
            )
        return project(self.attend(turned).flatten(1), self.o_proj)

    def attend(self, parts: QKVIndexerParts) -> torch.Tensor:
        """``[T, h, D]`` of what is normed and rotated."""
        return minimax_m3_sparse_forward(parts, self.layer_name)

    def _turn(
        self,
        heads: torch.Tensor | None,
        norm: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """``heads [T, n, D]``, each normed alone and rotated."""
        assert heads is not None
        normed = rms_norm(heads.contiguous(), norm, self.norm_eps)
        return apply_rotary(normed, cos, sin, interleaved=False)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
