"""What the caches of a model take for one request, kind by kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from ascend_attention.caches import CacheRole, RowScales

from ascend_vllm_plugin.planning.block_pool import LayerCache, Load
from ascend_vllm_plugin.planning.states import StatePages


@dataclass(frozen=True)
class CacheUse:
    """One of the kinds of cache, over all layers of one compress ratio.

    Attributes:
        role: what a row is.
        compress_ratio: ratio of the layers.
        layers: how many layers have it.
        block_tokens: tokens per block.
        rows: rows per block.
        width: values per row.
        dtype: dtype of a value, where it is quantised.
        scales: of a quantised row, or None.
        row_bytes: bytes of a row with its scales.
        window: tokens that stay cached, or None for all.
        states: recurrent states of a request, or None where a row is of tokens.
        request_bytes: bytes of a generating request's blocks on one card, all layers, without
            padding.
    """

    role: CacheRole
    compress_ratio: int
    layers: int
    block_tokens: int
    rows: int
    width: int
    dtype: torch.dtype
    scales: RowScales | None
    row_bytes: int
    window: int | None
    states: int | None
    request_bytes: int


def uses_of(
    caches: Sequence[LayerCache], length: int, load: Load, context_ranks: int
) -> Iterator[CacheUse]:
    """The kinds of cache of a model, each over all its layers.

    Args:
        caches: of all layers.
        length: tokens of a request.
        load: what the pool must hold.
        context_ranks: cards that share a context.
    """
    kinds = list(dict.fromkeys(cache.kind for cache in caches))
    for kind in sorted(
        kinds, key=lambda one: (one.compress_ratio, list(CacheRole).index(one.role))
    ):
        layers = sum(cache.kind == kind for cache in caches)
        held = length
        if kind.window is not None:
            held = min(kind.window - 1 + load.decode_in_flight, length)
        blocks = -(-held // (kind.block_tokens * context_ranks))
        states = kind.use.slots if isinstance(kind, StatePages) else None
        blocks = blocks if states is None else states
        yield CacheUse(
            kind.role,
            kind.compress_ratio,
            layers,
            kind.block_tokens,
            kind.rows_per_block,
            kind.width,
            kind.dtype,
            kind.scales,
            kind.row_bytes,
            kind.window,
            states,
            blocks * kind.block_bytes * layers,
        )
