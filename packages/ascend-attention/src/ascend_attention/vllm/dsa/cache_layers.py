"""The caches of a DeepSeek-V4 layer as vLLM sees them: one module per cache."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.caches import CacheKind
from ascend_attention.vllm.compat import cache_spec
from ascend_attention.vllm.dsa.backend import AscendDSABackend
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata


class PagedCacheLayer(torch.nn.Module, AttentionLayerBase):
    """One paged cache, registered with the engine under its prefix.

    Args:
        kind: what the cache holds.
        prefix: unique name with exactly one integer, the layer's number.

    Attributes:
        kv_cache: ``[blocks, rows, width]``, bound by the engine; a strided view.
    """

    def __init__(self, kind: CacheKind, prefix: str) -> None:
        super().__init__()
        self.kind = kind
        self.prefix = prefix
        self.kv_cache = torch.tensor([])
        context = get_current_vllm_config().compilation_config.static_forward_context
        if prefix in context:
            raise ValueError(
                f"cache {prefix!r} is declared twice; every layer needs its own prefix"
            )
        context[prefix] = self

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        return cache_spec(self.kind)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendDSABackend

    def metadata(self) -> AscendDSAMetadata | None:
        """This step's metadata, or None in a dummy run without caches."""
        by_layer = get_forward_context().attn_metadata
        if by_layer is None:
            return None
        if self.prefix not in by_layer:
            raise KeyError(
                f"no attention metadata for {self.prefix!r}; metadata exists for "
                f"{sorted(by_layer)}. The cache is in no KV cache group of this step."
            )
        return by_layer[self.prefix].get()


class AscendDeepseekV4SWACache(PagedCacheLayer):
    """Raw key-value rows of the sliding window."""


class AscendDeepseekV4CompressedCache(PagedCacheLayer):
    """Compressed key-value entries."""


class AscendDeepseekV4IndexerCache(PagedCacheLayer):
    """Compressed keys of the lightning indexer."""


class AscendCompressorStateCache(PagedCacheLayer):
    """float32 states of tokens whose entry may still be open."""
