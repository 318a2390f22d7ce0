"""A layer's caches and the kernels of ``layers/cpu_few_tokens.py``, for steps of a few tokens."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.caches import CacheRole
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata

if TYPE_CHECKING:
    from ascend_attention.vllm.dsa.impl import DSAInputs

_cpu = CpuKernels("ascend_attention.layers.cpu_few_tokens")

_DTYPES = (torch.float32, torch.bfloat16)
_ENTRIES_OF_STATES = {
    CacheRole.COMPRESSOR_STATE: CacheRole.COMPRESSED,
    CacheRole.INDEX_STATE: CacheRole.INDEX_KEY,
}

Metadata = Mapping[CacheRole, AscendDSAMetadata]


class FewTokensOnCPU:
    """One layer's step as two kernels.

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
        sinks: torch.Tensor,
        caches: Mapping[CacheRole, PagedCacheLayer],
        compressor: Compressor | None,
        indexer: DeepseekV4Indexer | None,
    ) -> None:
        self.scale = scale
        self.sinks = sinks
        self.layers = caches
        self.indexer = indexer
        compressors = {CacheRole.COMPRESSOR_STATE: compressor}
        if indexer is not None:
            compressors[CacheRole.INDEX_STATE] = indexer.compressor
        self._compressors = {role: one for role, one in compressors.items() if one is not None}
        self._bound: list[torch.Tensor] = []
        self._flat: dict[CacheRole, Any] | None = None

    def kernels(self, query: torch.Tensor) -> ModuleType | None:
        """The kernels if they take a step with these queries ``[T, heads, D]``, else None."""
        if not query.is_cpu or torch.compiler.is_compiling():
            return None
        kernels = _cpu.usable(query, self.sinks)
        if (
            kernels is None
            or not 0 < query.shape[0] <= kernels.MOST_TOKENS
            or query.dtype not in _DTYPES
            or self._flat_caches(kernels, query.dtype) is None
        ):
            return None
        return kernels

    def run(self, kernels: ModuleType, step: DSAInputs, metas: Metadata) -> torch.Tensor:
        """``[T, heads, D]``, all of the step's work on the caches."""
        step = type(step)(*(one.contiguous() for one in step))
        hidden, latent, query, kv, cos, sin = (kernels.as_numpy(one) for one in step)
        writes = self.writes(kernels, metas, hidden, cos, sin)
        if not kernels.write_and_project_few(hidden, latent, kv, *writes.arguments):
            refuse_rows()
        self.finish_entries(metas, step.hidden.dtype)
        out = torch.empty_like(step.query)
        self.attend(kernels, metas, writes, query, kernels.as_numpy(out))
        return out

    def writes(self, kernels: ModuleType, metas: Metadata, tokens: Any, cos: Any, sin: Any) -> Any:
        """:class:`StepWrites` of a step; ``tokens [T, H]`` tell its shape and dtype."""
        states = tuple(
            kernels.StateWrites(
                kernels.as_numpy(one.wkv_wgate),
                kernels.as_numpy(one.ape),
                self._row_writes(kernels, role, metas),
            )
            for role, one in self._compressors.items()
        )
        index = self.indexer
        if index is not None:
            index = kernels.IndexQuery(
                kernels.as_numpy(index.wq_b),
                kernels.as_numpy(index.weights_proj),
                index.num_heads,
                index.query_scale,
            )
        window = self._row_writes(kernels, CacheRole.SLIDING_WINDOW, metas)
        _, position = _arrays(kernels, metas[CacheRole.SLIDING_WINDOW], "layout")
        return kernels.step_writes(tokens, position, cos, sin, window, states, index)

    def finish_entries(self, metas: Metadata, dtype: torch.dtype) -> None:
        """Write the entries that the step completes, once its states are written."""
        for role, compressor in self._compressors.items():
            state, entries = metas[role], _ENTRIES_OF_STATES[role]
            assert state.closed is not None
            if len(state.closed):
                write = metas[entries].write
                assert state.read is not None
                assert write is not None
                closed = compressor.finish_paged(
                    self.layers[role].rows, state.read, state.closed.entry, dtype
                )
                self.layers[entries].write(closed, write)

    def attend(
        self, kernels: ModuleType, metas: Metadata, writes: Any, query: Any, out: Any
    ) -> None:
        """Fill ``out [T, heads, D]`` from ``query`` of that shape."""
        assert self._flat is not None
        window = kernels.RowReads(
            self._flat[CacheRole.SLIDING_WINDOW],
            *_arrays(kernels, metas[CacheRole.SLIDING_WINDOW], "read"),
        )
        entries = None
        if self.indexer is not None:
            keys, rows = metas[CacheRole.INDEX_KEY], metas[CacheRole.COMPRESSED]
            request, _ = _arrays(kernels, rows, "layout")
            entries = kernels.Selection(
                writes.index_query,
                writes.index_weights,
                self._flat[CacheRole.INDEX_KEY],
                _arrays(kernels, keys, "table"),
                _arrays(kernels, rows, "table"),
                self._flat[CacheRole.COMPRESSED],
                request,
                kernels.as_numpy(rows.layout.visible_entries(self.indexer.ratio)),
                self.indexer.top_k,
            )
        elif CacheRole.COMPRESSED in metas:
            entries = kernels.RowReads(
                self._flat[CacheRole.COMPRESSED],
                *_arrays(kernels, metas[CacheRole.COMPRESSED], "visible"),
            )
        kernels.attend(query, kernels.as_numpy(self.sinks), self.scale, out, window, entries)

    def _row_writes(self, kernels: ModuleType, role: CacheRole, metas: Metadata) -> Any:
        assert self._flat is not None
        return kernels.RowWrites(self._flat[role], *_arrays(kernels, metas[role], "write"))

    def _flat_caches(self, kernels: ModuleType, dtype: torch.dtype) -> dict[CacheRole, Any] | None:
        """Memory of the caches, looked at again only when the engine has bound others."""
        tensors = [layer.rows for layer in self.layers.values()]
        if len(tensors) == len(self._bound) and all(
            one is other for one, other in zip(tensors, self._bound, strict=True)
        ):
            return self._flat
        self._bound, self._flat = tensors, None
        weights = [one.wkv_wgate for one in self._compressors.values()]
        if self.indexer is not None:
            weights += [self.indexer.wq_b, self.indexer.weights_proj]
        if all(one.dtype == dtype and one.is_contiguous() for one in weights) and all(
            layer.rows.dtype == (torch.float32 if role in _ENTRIES_OF_STATES else dtype)
            and layer.rows.dim() == 3
            and layer.rows.stride(-1) == 1
            and layer.rows.numel()
            and layer.kind.scales is None
            for role, layer in self.layers.items()
        ):
            self._flat = {
                role: kernels.FlatCache.of(layer.rows) for role, layer in self.layers.items()
            }
        return self._flat


def refuse_rows() -> None:
    """Raise for a row outside its cache.

    Raises:
        IndexError: always.
    """
    raise IndexError("a row of this step lies outside its cache; nothing was written")


def _arrays(kernels: ModuleType, meta: AscendDSAMetadata, name: str) -> Any:
    """A part of the metadata as arrays, made once for all layers of a step."""
    made = meta.host_arrays
    if name not in made:
        made[name] = _MAKERS[name](kernels, meta)
    return made[name]


def _layout(kernels: ModuleType, meta: AscendDSAMetadata) -> tuple[Any, Any]:
    return kernels.as_numpy(meta.layout.request), kernels.as_numpy(meta.layout.position)


def _write(kernels: ModuleType, meta: AscendDSAMetadata) -> tuple[Any, Any]:
    assert meta.write is not None
    return kernels.as_numpy(meta.write.block), kernels.as_numpy(meta.write.offset)


def _read(kernels: ModuleType, meta: AscendDSAMetadata) -> tuple[Any, Any, Any]:
    assert meta.read is not None
    return _rows(kernels, *meta.read, meta.read_valid)


def _visible(kernels: ModuleType, meta: AscendDSAMetadata) -> tuple[Any, Any, Any]:
    assert meta.visible is not None
    (block, offset), valid = meta.visible
    return _rows(kernels, block, offset, valid)


def _rows(
    kernels: ModuleType, block: torch.Tensor, offset: torch.Tensor, valid: torch.Tensor | None
) -> tuple[Any, Any, Any]:
    mask = kernels.NO_MASK if valid is None else kernels.as_numpy(valid.contiguous())
    return kernels.as_numpy(block), kernels.as_numpy(offset), mask


def _table(kernels: ModuleType, meta: AscendDSAMetadata) -> Any:
    return kernels.as_numpy(meta.block_table.contiguous())


_MAKERS = {
    "layout": _layout,
    "write": _write,
    "read": _read,
    "visible": _visible,
    "table": _table,
}
