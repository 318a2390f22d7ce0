"""A layer's caches and the kernels of ``layers/cpu_few_tokens.py``, for steps of a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.parameter_watch import ParameterWatch

from ascend_attention.caches import CacheRole, overlap_of
from ascend_attention.step import BlockLayout
from ascend_attention.vllm.dsa.metadata import DeferredDSAMetadata
from ascend_attention.vllm.dsa.parts import DSAParts

if TYPE_CHECKING:
    from ascend_attention.vllm.dsa.impl import DSAInputs

_cpu = CpuKernels("ascend_attention.layers.cpu_few_tokens")

_DTYPES = (torch.float32, torch.bfloat16)
_COMPRESSOR_WEIGHTS = ("wkv_wgate", "ape", "norm")
_INDEXER_WEIGHTS = ("wq_b", "weights_proj")
_ENTRIES_OF_STATES = {
    CacheRole.COMPRESSOR_STATE: CacheRole.COMPRESSED,
    CacheRole.INDEX_STATE: CacheRole.INDEX_KEY,
}

# By the shapes of an indexer and a step: layers run one after the other and leave nothing in it.
_shared_scratch: dict[tuple[Any, ...], Any] = {}

_T = TypeVar("_T")

Steps = Mapping[CacheRole, DeferredDSAMetadata]


class FewTokensOnCPU:
    """One layer's step in one kernel.

    Args:
        parts: of the layer.

    Attributes:
        arrays: ``LayerArrays``, plain, of the step that :meth:`kernels` was last asked about.
    """

    def __init__(self, parts: DSAParts) -> None:
        self.parts = parts
        self._watch = ParameterWatch(
            [(one, name) for one in parts.compressors.values() for name in _COMPRESSOR_WEIGHTS]
            + (
                []
                if parts.indexer is None
                else [(parts.indexer, name) for name in _INDEXER_WEIGHTS]
            )
        )
        self._known: tuple[Any, ...] = ()
        self._caches: list[torch.Tensor] = []
        self.arrays: Any = None
        self._scratch: dict[int, Any] = {}

    def kernels(self, query: torch.Tensor) -> ModuleType | None:
        """The kernels if they take a step with these queries ``[T, heads, D]``, else None."""
        if not query.is_cpu or torch.compiler.is_compiling():
            return None
        kernels = _cpu.usable(query, self.parts.sinks)
        if (
            kernels is None
            or not 0 < query.shape[0] <= kernels.MOST_TOKENS
            or query.dtype not in _DTYPES
            or not self._current(kernels, query.dtype)
        ):
            return None
        return kernels

    def run(self, kernels: ModuleType, given: DSAInputs, steps: Steps) -> torch.Tensor:
        """``[T, heads, D]``, all of the step's work on the caches.

        Raises:
            IndexError: a row lies outside its cache; nothing was written.
        """
        given = type(given)(*(one.contiguous() for one in given))
        as_numpy = kernels.as_numpy
        hidden, latent, query, kv, cos, sin = (as_numpy(one) for one in given)
        out = torch.empty_like(given.query)
        step, scratch = self.step(kernels, steps), self.scratch(kernels, given.query)
        if not kernels.attention_step(
            hidden, latent, query, kv, cos, sin, self.arrays, step, scratch, as_numpy(out)
        ):
            refuse_rows()
        return out

    def _current(self, kernels: ModuleType, dtype: torch.dtype) -> bool:
        """Whether the kernels take the caches and weights, looked at when there are others."""
        caches = tuple([id(one.rows) for one in self.parts.caches.values()])
        known = dtype, caches, self.parts.sinks.data_ptr(), self._watch.addresses()
        if known != self._known:
            self._known, self._scratch = known, {}
            # Kept, so that no other tensor is taken for one of them.
            self._caches = [one.rows for one in self.parts.caches.values()]
            fits = self._fits(dtype)
            self.arrays = kernels.plain(self._layer_arrays(kernels, dtype)) if fits else None
        return self.arrays is not None

    def scratch(self, kernels: ModuleType, tokens: torch.Tensor) -> Any:
        """Room for what the indexer makes of ``tokens [T, ...]``."""
        count = tokens.shape[0]
        if count not in self._scratch:
            key = count, tokens.dtype, *kernels.index_shape(self.arrays)
            if key not in _shared_scratch:
                _shared_scratch[key] = kernels.index_scratch(self.arrays, count)
            self._scratch[count] = _shared_scratch[key]
        return self._scratch[count]

    def step(self, kernels: ModuleType, steps: Steps) -> Any:
        """``StepArrays``, plain, made by the first layer whose caches are in the same groups.

        Raises:
            IndexError: a row lies beyond a block table.
        """
        made = steps[CacheRole.SLIDING_WINDOW].host
        key = tuple(map(id, steps.values()))
        if key not in made:
            made[key] = self._step_arrays(kernels, steps)
        return made[key]

    def _fits(self, dtype: torch.dtype) -> bool:
        parts = self.parts
        weights = [one.wkv_wgate for one in parts.compressors.values()]
        if parts.indexer is not None:
            weights += [parts.indexer.wq_b, parts.indexer.weights_proj]
        return all(one.dtype == dtype and one.is_contiguous() for one in weights) and all(
            layer.rows.dtype == (torch.float32 if role in _ENTRIES_OF_STATES else dtype)
            and layer.rows.dim() == 3
            and layer.rows.stride(-1) == 1
            and layer.rows.numel()
            and layer.kind.scales is None
            for role, layer in parts.caches.items()
        )

    def _layer_arrays(self, kernels: ModuleType, dtype: torch.dtype) -> Any:
        parts, as_numpy, flat = self.parts, kernels.as_numpy, kernels.FlatCache.of
        window = flat(parts.caches[CacheRole.SLIDING_WINDOW].rows)
        kind, states = window.memory.dtype, {}
        for role, one in parts.compressors.items():
            states[role] = kernels.StateWeights(
                as_numpy(one.wkv_wgate),
                as_numpy(one.ape),
                as_numpy(one.norm),
                np.float32(one.norm_eps),
                as_numpy(one.rotary.cos),
                as_numpy(one.rotary.sin),
                flat(parts.caches[role].rows),
                flat(parts.caches[_ENTRIES_OF_STATES[role]].rows),
            )
        # Without a compressor nothing reads the hidden states here.
        none = kernels.no_states(kind, 0)
        index, top_k = kernels.no_index(kind, 0), 0
        if parts.indexer is not None:
            factor = np.float32(parts.indexer.query_scale)
            index = as_numpy(parts.indexer.wq_b), as_numpy(parts.indexer.weights_proj), factor
            top_k = parts.indexer.top_k
        return kernels.LayerArrays(
            as_numpy(parts.sinks),
            np.float32(parts.scale),
            window,
            states.get(CacheRole.COMPRESSOR_STATE, none),
            states.get(CacheRole.INDEX_STATE, none),
            index,
            top_k,
        )

    def _step_arrays(self, kernels: ModuleType, steps: Steps) -> Any:
        window = steps[CacheRole.SLIDING_WINDOW]
        layout, as_numpy = window.layout, kernels.as_numpy
        tokens = _once(
            window, "tokens", lambda: (as_numpy(layout.request), as_numpy(layout.position))
        )
        tables = [
            self._tables(kernels, steps[role], steps[_ENTRIES_OF_STATES[role]])
            for role in self.parts.compressors
        ]
        tables += [tuple(kernels.NO_TABLES)] * (2 - len(tables))
        rows = kernels.step_rows(
            *tokens,
            _slots(kernels, window),
            _table(kernels, window),
            window.kind.rows_per_block,
            window.kind.window,
            *tables,
            self.parts.indexer is not None,
        )
        if not isinstance(layout, BlockLayout):
            return rows
        made = kernels.StepArrays(*rows)._replace(seen=_seen_in_blocks(kernels, window))
        return tuple(made)

    def _tables(
        self, kernels: ModuleType, states: DeferredDSAMetadata, entries: DeferredDSAMetadata
    ) -> tuple[Any, ...]:
        def make() -> tuple[Any, ...]:
            made = kernels.StateTables(
                _slots(kernels, states),
                _table(kernels, states),
                states.kind.rows_per_block,
                _table(kernels, entries),
                entries.kind.rows_per_block,
                states.kind.compress_ratio,
                overlap_of(states.kind.compress_ratio),
            )
            return tuple(made)

        return _once(states, ("tables", id(entries)), make)


def refuse_rows() -> None:
    """Raise for a row outside its cache.

    Raises:
        IndexError: always.
    """
    raise IndexError("a row of this step lies outside its cache; nothing was written")


def _table(kernels: ModuleType, step: DeferredDSAMetadata) -> Any:
    return _once(step, "table", lambda: kernels.as_numpy(step.block_table.int().contiguous()))


def _slots(kernels: ModuleType, step: DeferredDSAMetadata) -> Any:
    tokens = step.layout.num_tokens
    return _once(step, "slots", lambda: kernels.as_numpy(step.slot_mapping[:tokens].long()))


def _seen_in_blocks(kernels: ModuleType, window: DeferredDSAMetadata) -> tuple[Any, Any]:
    """Rows that tokens of blocks read, which the kernels take to end at a token's own."""
    meta = window.get()
    assert meta.read is not None
    assert meta.read_valid is not None
    block = torch.where(meta.read_valid, meta.read.block.long(), -1)
    return kernels.as_numpy(block), kernels.as_numpy(meta.read.offset.long().contiguous())


def _once(step: DeferredDSAMetadata, key: Any, make: Callable[[], _T]) -> _T:
    """What one of the groups that share ``step`` has made of it."""
    if key not in step.host:
        step.host[key] = make()
    made: _T = step.host[key]
    return made
