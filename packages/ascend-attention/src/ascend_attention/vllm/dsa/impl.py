"""AscendDSAImpl: the order of work in one layer's attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from ascend_ops_core.overlap import bind

from ascend_attention.caches import CacheRole
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer, spread
from ascend_attention.ops.indexer import select_entries
from ascend_attention.ops.paged_rows import locate_rows
from ascend_attention.ops.sparse_attention import RowSource, sparse_attention
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.dsa.few_tokens import FewTokensOnCPU
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata, DeferredDSAMetadata
from ascend_attention.vllm.dsa.parts import DSAParts
from ascend_attention.vllm.dsa.plans import IndexerOverlapPlan

_PLAN = bind(
    IndexerOverlapPlan,
    "index_compress",
    "index_query",
    "select_entries",
    "write_window",
    "compress",
    "attend",
)


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
        parts: of the layer.
    """

    def __init__(self, parts: DSAParts) -> None:
        self.parts = parts
        self.few_tokens = FewTokensOnCPU(parts)

    def forward(self, inputs: DSAInputs) -> torch.Tensor:
        """``[T, heads, D]``."""
        steps = self.steps()
        if steps is None:
            return torch.zeros_like(inputs.query)
        kernels = self.few_tokens.kernels(inputs.query)
        if kernels is None:
            # All of it is made here, on the main stream, which every other one waits for.
            for one in steps.values():
                one.get()
        tokens = steps[CacheRole.SLIDING_WINDOW].layout.num_tokens
        if tokens == inputs.query.shape[0]:
            return self._step(inputs, steps, kernels)
        out = torch.empty_like(inputs.query)
        real = DSAInputs(*(one[:tokens] for one in inputs))
        out[:tokens] = self._step(real, steps, kernels)
        # Padding rows beyond the step's tokens must not carry garbage into the collectives.
        out[tokens:] = 0
        return out

    def steps(self) -> dict[CacheRole, DeferredDSAMetadata] | None:
        """What this step's metadata is made of, or None in a dummy run without caches."""
        steps: dict[CacheRole, DeferredDSAMetadata] = {}
        for role, cache in self.parts.caches.items():
            step = cache.step()
            if step is None:
                return None
            steps[role] = step
        return steps

    def _step(
        self,
        step: DSAInputs,
        steps: Mapping[CacheRole, DeferredDSAMetadata],
        kernels: ModuleType | None,
    ) -> torch.Tensor:
        if kernels is not None and len(step.query):
            return self.few_tokens.run(kernels, step, steps)
        if self.parts.indexer is not None:
            return self._with_indexer(self.parts.indexer, step)
        self._write_window(step)
        self._compress(step)
        return self._attend(step, self._all_entries())

    def _with_indexer(self, indexer: DeepseekV4Indexer, step: DSAInputs) -> torch.Tensor:
        keys = self.parts.caches[CacheRole.INDEX_KEY]
        quantised = keys.kind.scales is not None
        made: dict[str, torch.Tensor] = {}

        def compress_keys() -> None:
            states = self.parts.caches[CacheRole.INDEX_STATE]
            finish = spread if quantised else None
            _compress(indexer.compressor, states, keys, step.hidden, finish)

        def query() -> None:
            rows, made["weights"] = indexer.query(step.hidden, step.q_latent, step.cos, step.sin)
            made["query"] = spread(rows) if quantised else rows

        def select() -> None:
            meta = _metadata(keys)
            made["entries"] = select_entries(
                made["query"],
                made["weights"],
                keys.rows,
                meta.block_table,
                meta.layout,
                indexer.ratio,
                indexer.top_k,
                key_scale=keys.scales,
                most_entries=_most_entries(keys, meta),
            )

        def attend() -> None:
            entries = made["entries"]
            if entries.device.type != "cpu":
                # It was allocated on the indexer's stream, and is read on this one.
                entries.record_stream(_current_stream(entries.device))
            made["out"] = self._attend(step, self._chosen_entries(indexer, entries))

        _PLAN.run(
            step.hidden.device,
            compress_keys,
            query,
            select,
            lambda: self._write_window(step),
            lambda: self._compress(step),
            attend,
        )
        return made["out"]

    def _write_window(self, step: DSAInputs) -> None:
        window = self.parts.caches[CacheRole.SLIDING_WINDOW]
        _write_tokens(window, _metadata(window), step.kv)

    def _compress(self, step: DSAInputs) -> None:
        if self.parts.compressor is not None:
            _compress(
                self.parts.compressor,
                self.parts.caches[CacheRole.COMPRESSOR_STATE],
                self.parts.caches[CacheRole.COMPRESSED],
                step.hidden,
            )

    def _attend(self, step: DSAInputs, entries: RowSource | None) -> torch.Tensor:
        window = self.parts.caches[CacheRole.SLIDING_WINDOW]
        meta = _metadata(window)
        assert meta.read is not None
        sources = [window.source(meta.read, meta.read_valid)]
        if entries is not None:
            sources.append(entries)
        return sparse_attention(step.query, sources, self.parts.sinks, self.parts.scale)

    def _all_entries(self) -> RowSource | None:
        if self.parts.compressor is None:
            return None
        cache = self.parts.caches[CacheRole.COMPRESSED]
        meta = _metadata(cache)
        assert meta.visible is not None
        return cache.source(*meta.visible)

    def _chosen_entries(self, indexer: DeepseekV4Indexer, entry: torch.Tensor) -> RowSource:
        cache = self.parts.caches[CacheRole.COMPRESSED]
        meta = _metadata(cache)
        # Every token sees at least as many entries as there are places.
        full = (meta.layout.least_position + 1) // indexer.ratio >= entry.shape[1]
        index = locate_rows(
            meta.block_table,
            meta.layout.request.unsqueeze(-1),
            entry.clamp(min=0),
            cache.kind.rows_per_block,
        )
        return cache.source(index, None if full else entry >= 0)


def _current_stream(device: torch.device) -> Any:
    return getattr(torch, device.type).current_stream(device)


def _most_entries(keys: PagedCacheLayer, meta: AscendDSAMetadata) -> int:
    """Entries of the longest request, as far as the host knows and the block table reaches."""
    table = _metadata(keys).block_table
    reach = table.shape[1] * keys.kind.rows_per_block
    return max(1, min(meta.layout.longest_context // keys.kind.ratio, reach))


def _metadata(cache: PagedCacheLayer) -> AscendDSAMetadata:
    meta = cache.metadata()
    assert meta is not None, cache.prefix
    return meta


def _write_tokens(cache: PagedCacheLayer, meta: AscendDSAMetadata, rows: torch.Tensor) -> None:
    assert meta.write is not None
    cache.write(rows, meta.write)


def _compress(
    compressor: Compressor,
    state: PagedCacheLayer,
    entries: PagedCacheLayer,
    hidden: torch.Tensor,
    finish: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Store the states of this step's tokens, then the entries that they complete.

    Args:
        compressor: makes the entries.
        state: where the states are.
        entries: where the entries go.
        hidden: ``[T, H]``.
        finish: what is done to entries ``[N, D]`` before they are written, or None.
    """
    meta = _metadata(state)
    _write_tokens(state, meta, compressor.project(hidden, meta.layout.position))
    assert meta.closed is not None
    if len(meta.closed):
        write = _metadata(entries).write
        assert meta.read is not None
        assert write is not None
        closed = compressor.finish_paged(state.rows, meta.read, meta.closed.entry, hidden.dtype)
        entries.write(closed if finish is None else finish(closed), write)
