"""Per-step, per-cache metadata: every index that the layers need, computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionMetadata

from ascend_attention.caches import CacheKind, CacheRole, overlap_of
from ascend_attention.ops.paged_rows import RowIndex, locate_rows
from ascend_attention.step import ClosedEntries, StepLayout

_Made = TypeVar("_Made", bound=AttentionMetadata)


@dataclass
class AscendDSAMetadata(AttentionMetadata):
    """What the layers of one cache kind do with it in a step.

    Attributes:
        layout: the ragged batch.
        block_table: ``[R, nb]`` blocks of every request in this cache's group.
        write: where the rows go: a row per token, or per closed entry in a compressed cache. The
            block of a row that is not written is negative. None if no entry is closed.
        closed: entries that this step completes (compressed caches and states).
        read: rows that attention or the compressor reads: ``[T, window]`` of a sliding window (and
            the block's, where tokens see those behind them), ``[N, overlap * ratio]`` of a state
            cache. None if no entry is closed.
        read_valid: mask of ``read``, or None when all of it is valid.
        visible: ``[T, E]`` index and mask of a c128 cache, whose entries are all attended to.
    """

    layout: StepLayout
    block_table: torch.Tensor
    write: RowIndex | None = None
    closed: ClosedEntries | None = None
    read: RowIndex | None = None
    read_valid: torch.Tensor | None = None
    visible: tuple[RowIndex, torch.Tensor | None] | None = None


class DeferredMetadata(AttentionMetadata, Generic[_Made]):
    """Metadata that is made when the first layer asks for it.

    A step that replays a captured graph never asks, so it costs nothing there. Inside a captured
    region the making becomes part of the graph.

    Args:
        make: makes the metadata, once a step.
    """

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make
        self._made: _Made | None = None

    def get(self) -> _Made:
        """Return the metadata, made by the first call."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def forget(self) -> None:
        """Drop what was made, whose tensors belong to the graph that was captured with them."""
        self._made = None


class DeferredDSAMetadata(DeferredMetadata[AscendDSAMetadata]):
    """Metadata of one cache; CPU kernels take what it would be made of instead.

    Args:
        kind: the cache.
        layout: makes the ragged batch, once a step.
        block_table: see :func:`build_metadata`.
        slot_mapping: the same.

    Attributes:
        kind: the cache.
        block_table: as given.
        slot_mapping: as given.
        host: what CPU kernels have made of this step, instead of the metadata.
    """

    def __init__(
        self,
        kind: CacheKind,
        layout: Callable[[], StepLayout],
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        super().__init__(lambda: build_metadata(kind, self.layout, block_table, slot_mapping))
        self.kind = kind
        self.block_table = block_table
        self.slot_mapping = slot_mapping
        self.host: dict[Any, Any] = {}
        self._make_layout = layout
        self._layout: StepLayout | None = None

    @property
    def layout(self) -> StepLayout:
        """The ragged batch, made by the first call."""
        if self._layout is None:
            self._layout = self._make_layout()
        return self._layout

    def forget(self) -> None:
        """Drop the ragged batch as well, and what kernels made of it."""
        super().forget()
        self._layout = None
        self.host.clear()


def build_metadata(
    kind: CacheKind,
    layout: StepLayout,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> AscendDSAMetadata:
    """Metadata of one cache for one step.

    Args:
        kind: the cache.
        layout: the ragged batch.
        block_table: ``[R, nb]`` integer.
        slot_mapping: ``[T]`` integer, ``block * block_tokens + offset`` of every token in this
            group; -1 for tokens that must not be written. Compressed caches ignore it, since
            their rows are entries rather than tokens.
    """
    meta = AscendDSAMetadata(layout, block_table)
    if kind.role in (CacheRole.COMPRESSED, CacheRole.INDEX_KEY):
        _entry_cache(meta, kind)
    else:
        _token_cache(meta, kind, slot_mapping)
    return meta


def _entry_cache(meta: AscendDSAMetadata, kind: CacheKind) -> None:
    layout = meta.layout
    closed = meta.closed = layout.closed_entries(kind.ratio)
    if len(closed):
        meta.write = locate_rows(
            meta.block_table, closed.request, closed.entry, kind.rows_per_block
        )
        if closed.real is not None:
            meta.write = meta.write._replace(block=torch.where(closed.real, meta.write.block, -1))
    if kind.role is CacheRole.COMPRESSED and kind.compress_ratio == 128:
        visible = layout.visible_entries(kind.ratio)
        longest = layout.longest_context // kind.ratio
        entry = torch.arange(longest, device=visible.device).expand(visible.shape[0], longest)
        index = locate_rows(
            meta.block_table, layout.request.unsqueeze(-1), entry, kind.rows_per_block
        )
        all_seen = (layout.least_position + 1) // kind.ratio >= longest
        meta.visible = index, None if all_seen else entry < visible.unsqueeze(-1)


def _token_cache(meta: AscendDSAMetadata, kind: CacheKind, slot_mapping: torch.Tensor) -> None:
    layout = meta.layout
    meta.write = rows_of_slots(slot_mapping[: layout.num_tokens].long(), kind.block_tokens)
    if kind.role is CacheRole.SLIDING_WINDOW:
        assert kind.window is not None
        position = layout.window_positions(kind.window)
        meta.read = _rows_of(meta, kind, layout.request, position)
        meta.read_valid = None if layout.least_position >= kind.window - 1 else position >= 0
        return
    ratio = kind.compress_ratio
    closed = meta.closed = layout.closed_entries(ratio)
    if not len(closed):
        return
    width = overlap_of(ratio) * ratio
    last = (closed.entry + 1) * ratio
    position = last.unsqueeze(-1) - torch.arange(width, 0, -1, device=last.device)
    # Rows before the first token belong to no window; the compressor ignores them by entry.
    meta.read = _rows_of(meta, kind, closed.request, position)


def rows_of_slots(slots: torch.Tensor, block_tokens: int) -> RowIndex:
    """Where rows of slots ``[N]`` lie in blocks of so many; a negative slot's block is negative."""
    if slots.is_cpu:
        block, offset = np.divmod(slots.numpy(), block_tokens)
        return RowIndex(torch.from_numpy(block), torch.from_numpy(offset))
    place = torch.div(slots, block_tokens, rounding_mode="floor")
    return RowIndex(place, slots - place * block_tokens)


def _rows_of(
    meta: AscendDSAMetadata, kind: CacheKind, request: torch.Tensor, position: torch.Tensor
) -> RowIndex:
    return locate_rows(
        meta.block_table, request.unsqueeze(-1), position.clamp(min=0), kind.rows_per_block
    )
