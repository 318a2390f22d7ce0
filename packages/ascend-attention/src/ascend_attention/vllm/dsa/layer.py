"""DSAAttention: the caches of a layer, and attention over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.devices import DeviceFacts
from torch import nn

from ascend_attention.caches import CacheRole, layer_caches
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.step_bytes import StepSize, layer_bytes
from ascend_attention.vllm.dsa.cache_layers import (
    AscendCompressorStateCache,
    AscendDeepseekV4CompressedCache,
    AscendDeepseekV4IndexerCache,
    AscendDeepseekV4SWACache,
    PagedCacheLayer,
)
from ascend_attention.vllm.dsa.impl import AscendDSAImpl, DSAInputs
from ascend_attention.vllm.dsa.metadata import rows_of_slots
from ascend_attention.vllm.dsa.parts import DSAParts

_LAYER_OF_ROLE: dict[CacheRole, type[PagedCacheLayer]] = {
    CacheRole.SLIDING_WINDOW: AscendDeepseekV4SWACache,
    CacheRole.COMPRESSED: AscendDeepseekV4CompressedCache,
    CacheRole.INDEX_KEY: AscendDeepseekV4IndexerCache,
    CacheRole.COMPRESSOR_STATE: AscendCompressorStateCache,
    CacheRole.INDEX_STATE: AscendCompressorStateCache,
}


@dataclass(frozen=True)
class DSAShape:
    """Sizes of a layer's attention.

    Attributes:
        compress_ratio: 0, 4 or 128.
        num_heads: query heads on this rank.
        head_dim: width of a head.
        rotary_dim: rotated values at the end of a head.
        sliding_window: tokens of raw context.
        index_head_dim: width of an indexer key.
        device: device family of the cache table.
        block_tokens: tokens per compressed block, or None for the family's default.
        keep_dtype: caches keep the model's dtype, whatever the family fixes.
    """

    compress_ratio: int
    num_heads: int
    head_dim: int
    rotary_dim: int
    sliding_window: int
    index_head_dim: int
    device: str = "cpu"
    block_tokens: int | None = None
    keep_dtype: bool = False


class DSAAttention(nn.Module):
    """Sliding-window and compressed attention of one layer.

    Args:
        shape: sizes.
        sinks: ``[num_heads]`` float32 parameter of the model.
        compressor: makes compressed entries; None for ratio 0.
        indexer: selects entries; given exactly for ratio 4.
        dtype: the model's dtype.
        prefix: name of the layer, with its number.
    """

    def __init__(
        self,
        shape: DSAShape,
        sinks: nn.Parameter,
        compressor: Compressor | None,
        indexer: DeepseekV4Indexer | None,
        dtype: torch.dtype,
        prefix: str,
    ) -> None:
        super().__init__()
        kinds = layer_caches(
            shape.compress_ratio,
            head_dim=shape.head_dim,
            rotary_dim=shape.rotary_dim,
            index_head_dim=shape.index_head_dim,
            sliding_window=shape.sliding_window,
            dtype=dtype,
            device=shape.device,
            block_tokens=shape.block_tokens,
            keep_dtype=shape.keep_dtype,
        )
        caches = {
            role: _LAYER_OF_ROLE[role](kind, f"{prefix}.{role}") for role, kind in kinds.items()
        }
        self.caches = nn.ModuleDict({str(role): cache for role, cache in caches.items()})
        parts = DSAParts(shape.head_dim**-0.5, sinks, caches, compressor, indexer)
        self.impl = AscendDSAImpl(parts)
        self._shape = shape
        self._itemsize = dtype.itemsize

    def forward(self, inputs: DSAInputs) -> torch.Tensor:
        """Attention output ``[T, num_heads, D]``; zeros in a dummy run."""
        return self.impl.forward(inputs)

    @property
    def window(self) -> PagedCacheLayer:
        """The cache of the sliding window."""
        return self.impl.parts.caches[CacheRole.SLIDING_WINDOW]

    def insert_rows(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Write key-value rows of tokens that ask nothing, in front of those that do.

        Args:
            rows: ``[T, D]`` normed and rotated.
            slots: ``[T]`` integer in the sliding window; negative for rows that are not written.
        """
        self.window.write(rows, rows_of_slots(slots.long(), self.window.kind.block_tokens))

    def working_bytes(self, facts: DeviceFacts, step: StepSize) -> int:
        """Bytes that this layer's attention works on in a step, besides its input and output."""
        shape, indexer = self._shape, self.impl.parts.indexer
        return layer_bytes(
            facts,
            step,
            ratio=shape.compress_ratio,
            heads=shape.num_heads,
            width=shape.head_dim,
            window=shape.sliding_window,
            top_k=0 if indexer is None else indexer.top_k,
            itemsize=self._itemsize,
        )
