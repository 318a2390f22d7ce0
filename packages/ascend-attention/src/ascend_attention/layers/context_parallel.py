"""What a layer exchanges with the ranks that share its contexts (decode context parallelism).

Every rank of a group has the same tokens and its own heads, and keeps a part of every context's
rows (:class:`~ascend_attention.context_shard.ContextShard`). There are two ways to attend to all of
them, of which a step chooses for each request (:mod:`ascend_attention.layers.context_routes`):

- *Queries travel*: every rank gets the queries of all heads (one all-gather), attends to its own
  rows, and sends every head's result and logarithm to the rank that the head belongs to (one
  all-to-all), which merges them.
- *Rows travel*: every rank gets the rows of all (one all-gather) and attends with its own heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from ascend_ops_core.communication import Group, all_to_all

from ascend_attention.context_shard import ContextShard
from ascend_attention.ops.context_parallel import merge_packed_states, pack_attention_states
from ascend_attention.ops.context_parallel.candidates import Candidates

Attend = Callable[[torch.Tensor, torch.Tensor, slice], tuple[torch.Tensor, torch.Tensor]]

MOST_ELEMENTS = 1 << 26
"""Gathered queries of one exchange, in elements: bounds the memory of steps of many tokens."""


class ContextParallel:
    """One rank's exchanges with those that share its contexts.

    Args:
        group: the ranks, which hold the heads of a query in their order.
        interleave: consecutive tokens on one rank.
        num_heads: query heads of a rank.

    Attributes:
        shard: which tokens lie on this rank.
    """

    def __init__(self, group: Group, interleave: int, num_heads: int) -> None:
        self.group = group
        self.num_heads = num_heads
        self.shard = ContextShard(group.world_size, group.rank_in_group, interleave)

    def attend(
        self, q_latent: torch.Tensor, q_rope: torch.Tensor, over_own_rows: Attend
    ) -> torch.Tensor:
        """Attended latents ``[T, h, L]`` of this rank's heads over the rows of all ranks.

        All ranks call it together, with the same tokens.

        Args:
            q_latent: ``[T, h, L]`` queries in the space of latents; ``T`` may be 0.
            q_rope: ``[T, h, R]`` rotated, of the same dtype.
            over_own_rows: attends to this rank's rows, given ``[t, P * h, L]`` and
                ``[t, P * h, R]`` of the tokens in a slice; returns ``[t, P * h, L]`` and the
                logarithms ``[t, P * h]`` float32.
        """
        tokens, heads, width = q_latent.shape
        row = width + q_rope.shape[2]
        tile = max(1, MOST_ELEMENTS // (self.group.world_size * heads * row))
        out = q_latent.new_empty((tokens, heads, width))
        for start in range(0, tokens, tile):
            part = slice(start, min(start + tile, tokens))
            both = torch.cat([q_latent[part], q_rope[part]], dim=-1)
            latent, rope = self.group.all_gather(both, 1).split([width, row - width], dim=-1)
            if latent.device.type != "cpu":
                # A slower kernel would run on queries with gaps.
                latent, rope = latent.contiguous(), rope.contiguous()
            merged = self.merge(*over_own_rows(latent, rope, part))
            if tile >= tokens:
                return merged
            out[part] = merged
        return out

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> torch.Tensor:
        """``[T, h, D]``: results of this rank's heads, from all heads over the rows of each rank.

        Args:
            outs: ``[T, P * h, D]`` over this rank's rows.
            lses: ``[T, P * h]`` float32 logarithms; ``-inf`` where this rank has no row.
        """
        packed = pack_attention_states(outs, lses, self.group.world_size)
        received = all_to_all(packed, self.group)
        return merge_packed_states(received, outs.shape[2], outs.dtype)[0]

    def gather_candidates(self, own: Candidates) -> Candidates:
        """The candidates of all ranks side by side, ``[T, P * K]`` each, by one all-gather."""
        if not own.tokens.numel():
            ranks = self.group.world_size
            return Candidates(own.tokens.repeat(1, ranks), own.scores.repeat(1, ranks))
        both = torch.stack([own.tokens, own.scores.view(torch.int32)], dim=1)
        tokens, scores = self.group.all_gather(both, 2).unbind(1)
        return Candidates(tokens, scores.contiguous().view(torch.float32))

    def gather_blocks(
        self, caches: Sequence[torch.Tensor], blocks: torch.Tensor
    ) -> list[torch.Tensor]:
        """Blocks of all ranks with their tokens in order, by one all-gather.

        Args:
            caches: ``[B, P, W]`` each with the same ``P``, any dtypes and strides of blocks and
                rows; ``W`` of them may differ.
            blocks: ``[n]`` integer, blocks to send, at least one; the same requests' on all ranks.

        Returns:
            ``[n * ranks, P, W]`` of each cache, contiguous: for every block given, as many as there
            are ranks, which hold the tokens of all.
        """
        ranks, interleave = self.shard.ranks, self.shard.interleave
        found = [_bytes_of(cache, blocks) for cache in caches]
        gathered = self.group.all_gather(torch.cat(found, dim=-1), 0)
        count, page = blocks.shape[0], caches[0].shape[1]
        turns = gathered.view(ranks, count, page // interleave, interleave, -1)
        in_order = turns.permute(1, 2, 0, 3, 4)
        parts = in_order.split([one.shape[-1] for one in found], dim=-1)
        return [
            part.reshape(count * ranks, page, -1).view(cache.dtype)
            for part, cache in zip(parts, caches, strict=True)
        ]


def _bytes_of(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """``[n, P, bytes]`` uint8, a copy of whole blocks."""
    # Not every device indexes floats of eight bits.
    rows = cache if cache.element_size() > 1 else cache.view(torch.int8)
    return rows[blocks].contiguous().view(torch.uint8)
