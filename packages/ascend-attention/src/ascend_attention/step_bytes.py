"""Device memory that attention takes in a step, from sizes alone.

vLLM measures a step without attention, since there are no caches yet, so what attention keeps and
works on has to be counted. Counted are the tensors of the NPU path; workspaces inside operators are
not known without hardware.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.caches import CacheKind, CacheRole, overlap_of
from ascend_attention.layers.context_parallel import MOST_ELEMENTS
from ascend_attention.layers.context_routes import MOST_ROWS
from ascend_attention.ops.indexer.selection import tokens_at_once
from ascend_attention.ops.sparse_attention.plan import SMALLEST_TILE, plan, splits_of
from ascend_attention.ops.token_indexer.batch import selected_at_once

_FLOAT32, _INDEX, _FLAG = 4, 8, 1
_PLACE = 2 * _INDEX  # block and offset


@dataclass(frozen=True)
class StepSize:
    """The largest step.

    Attributes:
        tokens: tokens of the step.
        sequences: requests of the step.
        length: context length of a request, at most.
    """

    tokens: int
    sequences: int
    length: int


def metadata_bytes(groups: Iterable[Iterable[CacheKind]], step: StepSize) -> int:
    """Bytes of the indices that layers share, which are kept until the step ends.

    Args:
        groups: for every group of caches with one block table the kinds of its caches.
        step: the largest step.
    """
    made = [set(kinds) for kinds in groups]
    kinds = set().union(*made)
    windows = {one.window for one in kinds if one.role is CacheRole.SLIDING_WINDOW}
    ratios = {one.compress_ratio for one in kinds} - {0}
    layout = step.tokens * (2 + sum(window or 0 for window in windows) + len(ratios)) * _INDEX
    layout += sum(_closed(ratio, step) * 2 * _INDEX for ratio in ratios)
    return layout + sum(_index_bytes(one, step) for kinds in made for one in kinds)


def layer_bytes(
    facts: DeviceFacts,
    step: StepSize,
    *,
    ratio: int,
    heads: int,
    width: int,
    window: int,
    top_k: int,
    itemsize: int,
) -> int:
    """Bytes that one layer's attention works on besides its input and output.

    Args:
        facts: the device family.
        step: the largest step.
        ratio: compress ratio of the layer.
        heads: query heads of the rank.
        width: values of a head.
        window: tokens of the sliding window.
        top_k: entries that the indexer of a layer of ratio 4 keeps.
        itemsize: bytes of a value of the model's dtype.
    """
    entries = step.length // ratio if ratio else 0
    chosen = scores = 0
    if ratio == 4:
        chosen = step.tokens * top_k * (_INDEX + _PLACE + _FLAG)
        if entries > top_k:
            tile = min(step.tokens, tokens_at_once(entries))
            scores = tile * (entries * _FLOAT32 + top_k * (_FLOAT32 + 2 * _INDEX))
    widths = [window, *([top_k if ratio == 4 else entries] if ratio else [])]
    cut = plan(facts, step.tokens, heads, width, widths, itemsize)
    gathered = cut.tokens * cut.columns * (cut.padded * itemsize + _FLOAT32)
    if cut.splits > 1:
        gathered += cut.tokens * cut.splits * heads * (width + 2) * _FLOAT32
    return chosen + max(scores, gathered)


class IndexerSize(NamedTuple):
    """An indexer over tokens.

    Attributes:
        heads: its heads.
        width: of one.
        top_k: tokens that a query keeps.
    """

    heads: int
    width: int
    top_k: int


def latent_layer_bytes(
    facts: DeviceFacts,
    step: StepSize,
    *,
    heads: int,
    latent: int,
    rope: int,
    value: int,
    itemsize: int,
    indexer: IndexerSize | None,
) -> int:
    """Bytes that one layer's latent attention works on besides its input and output.

    Args:
        facts: the device family.
        step: the largest step.
        heads: query heads of the rank.
        latent: values of a latent.
        rope: rotated values of a head.
        value: values of a head's result.
        itemsize: bytes of a value of the model's dtype.
        indexer: of the layers that select tokens; None where all are attended to.
    """
    # Absorbed queries as they come and without gaps, rotated ones, what was attended, and values.
    attended = step.tokens * heads * (3 * latent + rope + value) * itemsize
    reach = step.length if indexer is None else indexer.top_k
    cut = plan(facts, step.tokens, heads, latent, [reach], itemsize)
    if indexer is None:
        units = step.tokens * -(-heads // cut.heads)
        splits = splits_of(facts, units, cut.columns // cut.rows)
        return attended + _parts(step.tokens, splits, heads, latent)
    parts = _parts(cut.tokens, cut.splits, heads, latent)
    turned = max(next_power_of_two(rope), SMALLEST_TILE)
    gathered = cut.tokens * cut.columns * ((cut.padded + turned) * itemsize + _FLOAT32)
    # Tokens and where they lie; queries before and after two rotations.
    chosen = step.tokens * indexer.top_k * (2 * _FLOAT32 + _PLACE)
    asked = step.tokens * indexer.heads * (3 * indexer.width * itemsize + 2 * _FLOAT32)
    scores = 0
    if step.length > indexer.top_k:
        # Scores, sorted ones, and their order.
        tile = min(step.tokens, selected_at_once(step.length))
        scores = tile * step.length * (2 * _FLOAT32 + _INDEX)
    return attended + chosen + asked + max(scores, gathered + parts)


def _parts(tokens: int, splits: int, heads: int, latent: int) -> int:
    """Bytes of results that programs which share a token's rows merge, in float32."""
    return tokens * splits * heads * (latent + 2) * _FLOAT32 if splits > 1 else 0


def context_bytes(
    step: StepSize,
    *,
    ranks: int,
    heads: int,
    latent: int,
    row: int,
    itemsize: int,
    row_bytes: int | None = None,
    prompts: bool = True,
) -> int:
    """Bytes that a layer exchanges with the ranks that share its contexts; 0 for one rank.

    Args:
        step: the largest step.
        ranks: ranks that share a context.
        heads: query heads of the rank.
        latent: values of an attended latent.
        row: values of a query and of a row of the cache.
        itemsize: bytes of a value of the model's dtype.
        row_bytes: of a row of the cache, where it is stored in another dtype.
        prompts: whether the step may have prompts, whose rows are gathered.
    """
    if ranks == 1:
        return 0
    every = ranks * heads
    tokens = min(step.tokens, max(1, MOST_ELEMENTS // (every * row)))
    # Gathered queries and their contiguous parts; results, packed, and received.
    queries = tokens * every * (2 * row + 3 * latent) * itemsize
    if not prompts:
        return queries
    # As they come, and in order.
    held = row * itemsize if row_bytes is None else row_bytes
    return queries + 2 * min(MOST_ROWS, step.sequences * step.length) * held


def block_table_bytes(block_tokens: Iterable[int], step: StepSize) -> int:
    """Bytes of vLLM's block tables and slots, which it makes after the caches.

    Args:
        block_tokens: tokens of a block of every group.
        step: the largest step.
    """
    return sum(
        step.sequences * -(-step.length // tokens) * 4 + step.tokens * _INDEX
        for tokens in block_tokens
    )


def _closed(ratio: int, step: StepSize) -> int:
    """Entries that a step may complete."""
    return min(step.tokens, step.tokens // ratio + step.sequences)


def _index_bytes(kind: CacheKind, step: StepSize) -> int:
    """Bytes of what metadata builders make for one kind in one group."""
    tokens, ratio = step.tokens, kind.compress_ratio
    if kind.role is CacheRole.SLIDING_WINDOW:
        return tokens * (_PLACE + (kind.window or 0) * (_PLACE + _FLAG))
    if not ratio:
        # A row for every token, which attention finds by the block table.
        return tokens * _PLACE
    closed = _closed(ratio, step)
    if kind.role in (CacheRole.COMPRESSOR_STATE, CacheRole.INDEX_STATE):
        return tokens * _PLACE + closed * overlap_of(ratio) * ratio * _PLACE
    found = closed * _PLACE
    if kind.role is CacheRole.COMPRESSED and ratio == 128:
        found += tokens * (step.length // ratio) * (_PLACE + _FLAG)
    return found
