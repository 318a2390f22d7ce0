"""AscendDSAImpl: the order of work in one layer's attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from ascend_attention.caches import CacheRole
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.ops.indexer import select_entries
from ascend_attention.ops.paged_rows import gather_rows, locate_rows, write_rows
from ascend_attention.ops.sparse_attention import RowSource, sparse_attention
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata


class DSAInputs(NamedTuple):
    """What the model computes in front of attention.

    Attributes:
        hidden: ``[T, H]`` normed input of the layer.
        q_latent: ``[T, q_lora_rank]`` normed query latent.
        query: ``[T, heads, D]`` normed and rotated.
        kv: ``[T, D]`` normed and rotated key-value row.
        cos: ``[T, R / 2]`` rotation of these tokens in this layer.
        sin: the same shape.
    """

    hidden: torch.Tensor
    q_latent: torch.Tensor
    query: torch.Tensor
    kv: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


class AscendDSAImpl:
    """Writes the caches, closes entries, selects, and attends.

    Args:
        scale: factor on dot products.
        sinks: ``[heads]`` float32.
        caches: cache layers by role.
        compressor: None for sliding-window layers.
        indexer: given for c4 layers.
    """

    def __init__(
        self,
        scale: float,
        sinks: nn.Parameter,
        caches: Mapping[CacheRole, PagedCacheLayer],
        compressor: Compressor | None,
        indexer: DeepseekV4Indexer | None,
    ) -> None:
        self.scale = scale
        self.sinks = sinks
        self.caches = caches
        self.compressor = compressor
        self.indexer = indexer

    def forward(self, inputs: DSAInputs) -> torch.Tensor:
        """``[T, heads, D]``."""
        window = self.caches[CacheRole.SLIDING_WINDOW]
        meta = window.metadata()
        if meta is None:
            return torch.zeros_like(inputs.query)
        tokens = meta.layout.num_tokens
        _write_tokens(window, meta, inputs.kv[:tokens])
        assert meta.read is not None
        sources = [RowSource(window.kv_cache, meta.read, meta.read_valid)]
        if self.compressor is not None:
            _compress(
                self.compressor,
                self.caches[CacheRole.COMPRESSOR_STATE],
                self.caches[CacheRole.COMPRESSED],
                inputs.hidden[:tokens],
            )
            sources.append(self._compressed_source(inputs, tokens))
        out = torch.empty_like(inputs.query)
        out[:tokens] = sparse_attention(inputs.query[:tokens], sources, self.sinks, self.scale)
        # Padding rows beyond the step's tokens must not carry garbage into the collectives.
        out[tokens:] = 0
        return out

    def _compressed_source(self, inputs: DSAInputs, tokens: int) -> RowSource:
        cache = self.caches[CacheRole.COMPRESSED]
        meta = _metadata(cache)
        if self.indexer is None:
            assert meta.visible is not None
            return RowSource(cache.kv_cache, *meta.visible)
        keys = self.caches[CacheRole.INDEX_KEY]
        hidden = inputs.hidden[:tokens]
        _compress(self.indexer.compressor, self.caches[CacheRole.INDEX_STATE], keys, hidden)
        query, weights = self.indexer.query(
            hidden, inputs.q_latent[:tokens], inputs.cos[:tokens], inputs.sin[:tokens]
        )
        entry = select_entries(
            query,
            weights,
            keys.kv_cache,
            _metadata(keys).block_table,
            meta.layout,
            self.indexer.ratio,
            self.indexer.top_k,
            most_entries=max(1, meta.layout.longest_context // self.indexer.ratio),
        )
        # Every token sees at least as many entries as there are places.
        full = (meta.layout.least_position + 1) // self.indexer.ratio >= entry.shape[1]
        index = locate_rows(
            meta.block_table,
            meta.layout.request.unsqueeze(-1),
            entry.clamp(min=0),
            cache.kind.rows_per_block,
        )
        return RowSource(cache.kv_cache, index, None if full else entry >= 0)


def _metadata(cache: PagedCacheLayer) -> AscendDSAMetadata:
    meta = cache.metadata()
    assert meta is not None, cache.prefix
    return meta


def _write_tokens(cache: PagedCacheLayer, meta: AscendDSAMetadata, rows: torch.Tensor) -> None:
    assert meta.write is not None
    if meta.token_rows is not None:
        rows = rows[meta.token_rows]
    write_rows(cache.kv_cache, rows, meta.write)


def _compress(
    compressor: Compressor,
    state: PagedCacheLayer,
    entries: PagedCacheLayer,
    hidden: torch.Tensor,
) -> None:
    """Store the states of this step's tokens, then the entries that they complete."""
    state_meta, entry_meta = _metadata(state), _metadata(entries)
    _write_tokens(state, state_meta, compressor.project(hidden, state_meta.layout.position))
    assert state_meta.closed is not None
    assert state_meta.read is not None
    assert entry_meta.write is not None
    if len(state_meta.closed):
        rows = gather_rows(state.kv_cache, state_meta.read)
        closed = compressor.finish(rows, state_meta.closed.entry, hidden.dtype)
        write_rows(entries.kv_cache, closed, entry_meta.write)
