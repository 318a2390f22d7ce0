"""The caches of a DeepSeek-V4 layer as vLLM sees them: one module per cache."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.caches import CacheKind
from ascend_attention.ops.indexer import quantize_index_rows
from ascend_attention.ops.packed_rows import quantize_kv_rows
from ascend_attention.ops.paged_rows import RowIndex, write_rows
from ascend_attention.ops.sparse_attention import RowSource
from ascend_attention.vllm.compat import cache_spec
from ascend_attention.vllm.dsa.backend import AscendDSABackend
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata, DeferredDSAMetadata


class PagedCacheLayer(torch.nn.Module, AttentionLayerBase):
    """One paged cache, registered with the engine under its prefix.

    Args:
        kind: what the cache holds.
        prefix: unique name with exactly one integer, the layer's number.

    Attributes:
        kv_cache: what the engine bound, a strided view: ``[blocks, rows, width]``, or
            ``[blocks, rows, bytes]`` uint8 where rows are quantised.
        rows: ``[blocks, rows, width]`` of ``kv_cache`` in the rows' dtype; packed rows as they are.
        scales: ``[blocks, rows]`` of ``kv_cache``, or None without scales of their own.
    """

    rows: torch.Tensor
    scales: torch.Tensor | None

    def __init__(self, kind: CacheKind, prefix: str) -> None:
        super().__init__()
        self.kind = kind
        self.prefix = prefix
        self.kv_cache = self.rows = torch.tensor([])
        self.scales = None
        context = get_current_vllm_config().compilation_config.static_forward_context
        if prefix in context:
            raise ValueError(
                f"cache {prefix!r} is declared twice; every layer needs its own prefix"
            )
        context[prefix] = self

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache that the engine allocated."""
        self.kv_cache = kv_cache
        self.rows, self.scales = self.kind.views(kv_cache)

    def write(self, rows: torch.Tensor, index: RowIndex) -> None:
        """Write ``rows [N, width]`` at ``index`` (each ``[N]``) in the cache's form."""
        scales = self.kind.scales
        if scales is None:
            write_rows(self.rows, rows, index)
        elif scales.rotary is not None:
            quantize_kv_rows(self.rows, rows, *index, scales.rotary)
        else:
            assert self.scales is not None
            quantize_index_rows(self.rows, self.scales, rows, *index)

    def source(self, index: RowIndex, valid: torch.Tensor | None) -> RowSource:
        """The rows at ``index`` for attention."""
        scales = self.kind.scales
        return RowSource(self.rows, index, valid, None if scales is None else scales.rotary)

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        return cache_spec(self.kind)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendDSABackend

    def metadata(self) -> AscendDSAMetadata | None:
        """This step's metadata, or None in a dummy run without caches."""
        step = self.step()
        return None if step is None else step.get()

    def step(self) -> DeferredDSAMetadata | None:
        """What :meth:`metadata` is made of, or None in a dummy run without caches."""
        by_layer = get_forward_context().attn_metadata
        if by_layer is None:
            return None
        if self.prefix not in by_layer:
            raise KeyError(
                f"no attention metadata for {self.prefix!r}; metadata exists for "
                f"{sorted(by_layer)}. The cache is in no KV cache group of this step."
            )
        step: DeferredDSAMetadata = by_layer[self.prefix]
        return step


class AscendDeepseekV4SWACache(PagedCacheLayer):
    """Raw key-value rows of the sliding window."""


class AscendDeepseekV4CompressedCache(PagedCacheLayer):
    """Compressed key-value entries."""


class AscendDeepseekV4IndexerCache(PagedCacheLayer):
    """Compressed keys of the lightning indexer."""


class AscendCompressorStateCache(PagedCacheLayer):
    """float32 states of tokens whose entry may still be open."""
