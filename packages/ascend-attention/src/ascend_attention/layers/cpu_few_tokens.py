"""A layer's caches, selection and attention for a few tokens on a CPU, in one call.

The same work as a chain of operators costs a decode step more in calls than in arithmetic.

Everything is numpy: memory of the engine's caches as flat arrays with strides, bfloat16 as its
bits. What does not change from step to step is given apart from what does. Shapes: T tokens, H
hidden size, h heads, D head width, L query rank, n heads of the indexer, d their width, R requests,
nb blocks of a request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import as_numpy
from numba import njit

from ascend_attention.layers.cpu_few_attention import attend_few_tokens
from ascend_attention.layers.cpu_few_writes import FlatCache, StateRows, StateWeights, write_few
from ascend_attention.layers.cpu_step_rows import NO_TABLES, StateTables, step_rows

Array = np.ndarray[Any, Any]

__all__ = [
    "MOST_TOKENS",
    "NO_TABLES",
    "FlatCache",
    "LayerArrays",
    "StateTables",
    "StateWeights",
    "StepArrays",
    "as_numpy",
    "attention_step",
    "index_scratch",
    "index_shape",
    "no_index",
    "no_states",
    "plain",
    "step_rows",
]

MOST_TOKENS = 16
"""With more tokens the products are GEMMs, which the chain of operators uses."""

_write, _attend = apart(write_few), apart(attend_few_tokens)


class LayerArrays(NamedTuple):
    """What a layer's attention reads and writes in every step.

    Attributes:
        sinks: ``[h]`` float32.
        scale: float32, factor on the dot products.
        window: cache of the key-value rows.
        own: the layer's compressor.
        other: the indexer's.
        indexer: the indexer's projections ``[n * d, L]`` and ``[n, H]``, and a float32 factor on
            the weights of its heads.
        top_k: most entries that a token keeps; 0 without an indexer.
    """

    sinks: Array
    scale: np.float32
    window: FlatCache
    own: StateWeights
    other: StateWeights
    indexer: tuple[Array, Array, np.float32]
    top_k: int


class StepArrays(NamedTuple):
    """Where a step's tokens write and read, for all layers whose caches are in the same groups.

    Attributes:
        position: ``[T]`` int64.
        window: block and offset ``[T]`` of the rows that are written.
        own: states and entries of the layer's compressor.
        other: of the indexer's.
        seen: block and offset ``[T, window]`` of the rows that are read.
        entries: block and offset ``[T, E]`` of all entries, where none are selected.
        selection: blocks ``[R, nb]`` of the indexer's keys and of entries, ``[T]`` int64 request
            of every token and ``[T]`` int64 entries that each token sees.
    """

    position: Array
    window: tuple[Array, Array]
    own: StateRows
    other: StateRows
    seen: tuple[Array, Array]
    entries: tuple[Array, Array]
    selection: tuple[Array, Array, Array, Array]


def no_states(dtype: Any, hidden: int) -> StateWeights:
    """Instead of a compressor, for tokens ``[T, hidden]`` of a numpy ``dtype``."""
    return StateWeights(
        np.empty((0, hidden), dtype=dtype),
        np.empty((1, 0), dtype=np.float32),
        np.empty(0, dtype=np.float32),
        np.float32(0),
        np.empty((0, 0), dtype=np.float32),
        np.empty((0, 0), dtype=np.float32),
        FlatCache.none(np.float32),
        FlatCache.none(dtype),
    )


def no_index(dtype: Any, hidden: int) -> tuple[Array, Array, np.float32]:
    """Instead of an indexer, for tokens ``[T, hidden]`` of a numpy ``dtype``."""
    return np.empty((0, 1), dtype=dtype), np.empty((0, hidden), dtype=dtype), np.float32(0)


def index_shape(layer: tuple[Any, ...]) -> tuple[int, int]:
    """Heads ``n`` of the indexer and their width ``d``; 0 and 1 without one.

    Args:
        layer: :class:`LayerArrays`, plain.
    """
    projection, heads, _ = layer[LayerArrays._fields.index("indexer")]
    count = heads.shape[0]
    return count, projection.shape[0] // count if count else 1


def index_scratch(layer: tuple[Any, ...], tokens: int) -> tuple[Array, Array]:
    """Room for the indexer's queries ``[T, n, d]`` and their heads' weights ``[T, n]``.

    Args:
        layer: :class:`LayerArrays`, plain.
        tokens: ``T``.
    """
    heads, width = index_shape(layer)
    projection = layer[LayerArrays._fields.index("indexer")][0]
    return (
        np.empty((tokens, heads, width), dtype=projection.dtype),
        np.empty((tokens, heads), dtype=np.float32),
    )


def plain(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Nested named tuples as tuples, whose types numba finds out many times faster."""
    return tuple(plain(one) if isinstance(one, tuple) else one for one in arrays)


@njit(cache=True)
def attention_step(hidden, latent, query, kv, cos, sin, layer, step, scratch, out):  # type: ignore[no-untyped-def]
    """Write the caches and attend.

    Args:
        hidden: ``[T, H]`` normed input of the layer.
        latent: ``[T, L]`` normed query latent.
        query: ``[T, h, D]``.
        kv: ``[T, D]``.
        cos: ``[T, R / 2]`` float32.
        sin: the same.
        layer: :class:`LayerArrays`, plain.
        step: :class:`StepArrays`, plain.
        scratch: see :func:`index_scratch`.
        out: ``[T, h, D]``, filled.

    Returns:
        False if a row is outside its cache, and then nothing is written.
    """
    sinks, scale, window, own, other, index, top_k = layer
    position, window_rows, own_rows, other_rows, seen, entry_rows, selection = step
    index_query, index_weights = scratch
    if not _write(
        hidden, latent, kv, position, cos, sin, window, window_rows, own, own_rows, other,
        other_rows, index, index_query, index_weights,
    ):  # fmt: skip
        return False
    _attend(
        query, sinks, scale, out, window, seen, own[7], entry_rows, top_k, index_query,
        index_weights, other[7], selection,
    )  # fmt: skip
    return True
