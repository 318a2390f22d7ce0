"""What a layer's attention is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from ascend_attention.caches import CacheRole
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer


class DSAParts(NamedTuple):
    """What a layer's attention is made of.

    Attributes:
        scale: factor on dot products.
        sinks: ``[heads]`` float32.
        caches: cache layers by role.
        compressor: None for sliding-window layers.
        indexer: given for c4 layers.
    """

    scale: float
    sinks: nn.Parameter
    caches: Mapping[CacheRole, PagedCacheLayer]
    compressor: Compressor | None
    indexer: DeepseekV4Indexer | None

    @property
    def compressors(self) -> dict[CacheRole, Compressor]:
        """Compressors by the role of their states: the layer's own and the indexer's."""
        found = {CacheRole.COMPRESSOR_STATE: self.compressor}
        if self.indexer is not None:
            found[CacheRole.INDEX_STATE] = self.indexer.compressor
        return {role: one for role, one in found.items() if one is not None}
