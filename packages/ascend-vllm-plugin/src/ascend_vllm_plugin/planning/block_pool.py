"""How vLLM 0.27.1 turns the caches of a model into one pool of blocks, as arithmetic.

Follows ``get_kv_cache_groups``, ``get_kv_cache_config_from_groups`` and the admission check in
``vllm/v1/core/kv_cache_utils.py``, without importing vLLM: importing it takes longer than planning.
The engine tests compare both, block for block. What a row of a cache is comes from
``ascend_attention.caches`` and from nowhere else.

A block of the pool is as long as the largest group of caches; every group overlays its caches in
it from the start, and a block belongs to one group at a time. With recurrent states every cache of
every group has a page of the same length, and groups have about as many caches each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from ascend_attention.caches import CacheKind

from ascend_vllm_plugin.planning.models import ModelSpec, caches_of_layer
from ascend_vllm_plugin.planning.states import StatePages, StateUse


@dataclass(frozen=True)
class LayerCache:
    """One cache of one layer.

    Attributes:
        layer: number of the layer, MTP layers after the main ones.
        kind: what the cache holds.
    """

    layer: int
    kind: CacheKind


@dataclass(frozen=True)
class CacheGroup:
    """Caches that share a block table.

    Attributes:
        caches: all of them have the same tokens per block and the same window.
        tuples: how often the group's most frequent page size occurs in it.
        draft: vLLM looks one block further here, since the draft's cache is among them.
        ranks: cards that share a context, each of which has a block where the table has one.
    """

    caches: tuple[LayerCache, ...]
    tuples: int
    draft: bool = False
    ranks: int = 1

    @property
    def block_tokens(self) -> int:
        """Tokens for which the block table has one block."""
        return self.caches[0].kind.block_tokens * self.ranks

    @property
    def window(self) -> int | None:
        """Tokens that stay cached, or None for all."""
        return self.caches[0].kind.window

    @property
    def states(self) -> StateUse | None:
        """How many recurrent states a request has, if that is what the group holds."""
        kind = self.caches[0].kind
        return kind.use if isinstance(kind, StatePages) else None

    @property
    def bytes_used(self) -> int:
        """Bytes of a pool block that the group fills."""
        return sum(cache.kind.block_bytes for cache in self.caches)

    def blocks_at_most(self, tokens: int, tokens_in_flight: int) -> int:
        """Blocks that a request of ``tokens`` may hold at once, as vLLM admits it."""
        if self.states is not None:
            return self.states.slots
        if self.window is None:
            return _ceil(tokens, self.block_tokens)
        held = min(self.window - 1 + tokens_in_flight, tokens)
        # The window may begin in the middle of a block.
        return _ceil(held, self.block_tokens) + 1


@dataclass(frozen=True)
class Load:
    """What is asked of a pool.

    Attributes:
        tokens_in_flight: tokens scheduled and not yet settled, prompts included.
        decode_in_flight: the same for one request that is generating.
        concurrency: requests that are held at once: one whose prompt is computed, the others
            generating.
    """

    tokens_in_flight: int
    decode_in_flight: int = 1
    concurrency: int = 1


@dataclass(frozen=True)
class BlockPool:
    """The pool of one card.

    Attributes:
        groups: the group of compressed caches first, where there is one.
        stride: bytes of a block.
        admission_bytes: bytes by which vLLM multiplies a request's blocks when it checks at start
            that one request fits; at least ``stride``.
    """

    groups: tuple[CacheGroup, ...]
    stride: int
    admission_bytes: int

    def num_blocks(self, memory: int) -> int:
        """Blocks that vLLM makes of ``memory`` bytes."""
        return memory // self.stride

    def padding(self, group: CacheGroup) -> float:
        """Share of a block that ``group`` leaves empty."""
        return 1 - group.bytes_used / self.stride

    def blocks_per_request(self, tokens: int, tokens_in_flight: int) -> int:
        """Blocks that a request of ``tokens`` may hold at once, of all groups."""
        return sum(group.blocks_at_most(tokens, tokens_in_flight) for group in self.groups)

    def blocks_of(self, load: Load, tokens: int) -> int:
        """Blocks that ``load`` needs when every request has ``tokens``."""
        prompt = self.blocks_per_request(tokens, load.tokens_in_flight)
        decode = self.blocks_per_request(tokens, load.decode_in_flight)
        return prompt + (load.concurrency - 1) * decode

    def bytes_to_admit(self, tokens: int, tokens_in_flight: int) -> int:
        """Bytes that vLLM wants at start before it accepts ``max_model_len=tokens``."""
        return self.blocks_per_request(tokens, tokens_in_flight) * self.admission_bytes

    def fits(self, memory: int, load: Load, tokens: int) -> bool:
        """Whether the engine starts with ``memory`` bytes and holds ``load``."""
        # Block 0 stands for "no block".
        return (
            self.blocks_of(load, tokens) <= self.num_blocks(memory) - 1
            and self.bytes_to_admit(tokens, load.tokens_in_flight) <= memory
        )

    @property
    def prefix_unit(self) -> int:
        """Tokens in whose multiples a prefix is reused."""
        return math.lcm(*(group.block_tokens for group in self.groups))

    @property
    def smallest_shared_prefix(self) -> int:
        """Tokens that two prompts must share before anything is reused.

        With a draft vLLM matches one more block of the draft's group, and drops it. The second
        prompt needs at least one token more than this.
        """
        peek = max((g.block_tokens for g in self.groups if g.draft), default=0)
        return self.prefix_unit + peek


def caches_of(
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: str,
    block_tokens: int | None = None,
    draft: bool = False,
    keep_dtype: bool = False,
    int8_latents: bool = False,
    ranks: int = 1,
    states: StateUse | None = None,
) -> list[LayerCache]:
    """Every cache of a model, layer by layer.

    Args:
        spec: the model.
        dtype: the model's dtype.
        device: a device family of the cache table.
        block_tokens: tokens per compressed block, or None for the family's default.
        draft: with the MTP layers.
        keep_dtype: rows keep the model's dtype, whatever the family fixes.
        int8_latents: latents have eight bits.
        ranks: tensor-parallel ranks.
        states: how many recurrent states a request has, or None for one.

    Raises:
        InvalidInputError: an unknown device family or block size.
    """
    layers = spec.num_hidden_layers + (spec.num_mtp_layers if draft else 0)
    return [
        LayerCache(layer, kind)
        for layer in range(layers)
        for kind in caches_of_layer(
            spec,
            layer,
            dtype=dtype,
            device=device,
            block_tokens=block_tokens,
            keep_dtype=keep_dtype,
            int8_latents=int8_latents,
            ranks=ranks,
            states=states,
        )
    ]


def pool_of(
    caches: Sequence[LayerCache], *, draft: bool = False, context_ranks: int = 1
) -> BlockPool:
    """The pool in which vLLM keeps ``caches``.

    Args:
        caches: of all layers, in the order of :func:`caches_of`.
        draft: the last cache is that of a draft.
        context_ranks: cards that share a context; more than 1 only without windows.
    """
    if any(isinstance(cache.kind, StatePages) for cache in caches):
        return _hybrid_pool(caches, caches[-1] if draft else None)
    compressed = [cache for cache in caches if cache.kind.window is None]
    windowed: dict[tuple[int, int], list[LayerCache]] = {}
    for cache in caches:
        if cache.kind.window is not None:
            key = cache.kind.block_tokens, cache.kind.window
            windowed.setdefault(key, []).append(cache)
    last = caches[-1] if draft else None
    if not compressed:
        # Layers that are all alike make one group, whatever their number.
        group = _group(caches, last)
        return BlockPool((group,), group.bytes_used, group.bytes_used)
    main = _group(compressed, last, context_ranks)
    size = _tuples_per_group([main.tuples, *(_tuples(members) for members in windowed.values())])
    groups = [main]
    for members in windowed.values():
        groups += [_group(part, last) for part in _split(members, size)]
    pages = {cache.kind.block_bytes for cache in compressed}
    return BlockPool(
        tuple(groups),
        max(group.bytes_used for group in groups),
        sum(pages) * max(group.tuples for group in groups),
    )


def _hybrid_pool(caches: Sequence[LayerCache], last: LayerCache | None) -> BlockPool:
    """Latents and recurrent states, whose pages are as long as a block of latents."""
    states = [cache for cache in caches if isinstance(cache.kind, StatePages)]
    latents = [cache for cache in caches if not isinstance(cache.kind, StatePages)]
    fewest, most = sorted((len(states), len(latents)))
    # A few caches more than half of the groups' size would leave much of the last group empty.
    size = most if most < 1.5 * fewest else fewest
    groups = []
    for members in (latents, states):
        parts = _ceil(len(members), size)
        groups += [_group(members[i::parts], last) for i in range(parts)]
    stride = max(len(group.caches) for group in groups) * latents[0].kind.block_bytes
    return BlockPool(tuple(groups), stride, stride)


def _group(caches: Sequence[LayerCache], last: LayerCache | None, ranks: int = 1) -> CacheGroup:
    alike = last is not None and any(
        (cache.kind.block_tokens, cache.kind.window, cache.kind.block_bytes)
        == (last.kind.block_tokens, last.kind.window, last.kind.block_bytes)
        for cache in caches
    )
    return CacheGroup(tuple(caches), _tuples(caches), alike, ranks)


def _tuples(caches: Sequence[LayerCache]) -> int:
    return max(Counter(cache.kind.block_bytes for cache in caches).values())


def _tuples_per_group(counts: Sequence[int]) -> int:
    """The size to which groups are rounded up with the least padding; the largest of equals."""
    sizes = range(counts[0], max(counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))


def _split(caches: Sequence[LayerCache], size: int) -> list[list[LayerCache]]:
    """Parts of at most ``size`` layers for every page size, each an equal share."""
    by_page: dict[int, list[LayerCache]] = {}
    for cache in caches:
        by_page.setdefault(cache.kind.block_bytes, []).append(cache)
    rows = list(zip(*by_page.values(), strict=True))
    parts = _ceil(len(rows), size)
    return [[cache for row in rows[i::parts] for cache in row] for i in range(parts)]


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
