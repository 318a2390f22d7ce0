"""Block-sparse attention block by block, as dense products, for a CPU with many queries.

Each block of a request is read once, for all queries that selected it, and what they have from it
is merged with what they had from the blocks before.
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_attention.ops.block_csr.reference import k2q_csr

# Below every logarithm, above -inf, so that differences are numbers.
_LOWEST = -3.0e38

# Logits of one tile, in elements: small enough for caches.
_TILE_ELEMENTS = 1 << 18


def block_sparse_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_sparse_attention.block_sparse_attention`.

    Every query belongs to a request.
    """
    tokens, heads = query.shape[:2]
    page, groups = key_cache.shape[1:3]
    shared = heads // groups
    out = torch.empty_like(query)
    lse = torch.empty((tokens, heads))
    # The selection ends at the first unused place; a block that is not seen gives nothing.
    seen = selected <= torch.div(position, page, rounding_mode="floor").view(-1, 1, 1)
    used = (selected >= 0).cumprod(dim=-1) > 0
    for one in request.unique().tolist():
        mine = (request == one).nonzero().flatten()
        last = position[mine].long()
        blocks = int(last.max()) // page + 1
        most = int(torch.where(used[mine], selected[mine], -1).max())
        if most >= block_table.shape[1]:
            raise IndexError(
                f"block {most} is selected in a table of {block_table.shape[1]} blocks a request"
            )
        row_ptr, q_ind, _ = k2q_csr(
            torch.where(used & seen, selected, -1)[mine],
            torch.tensor([0, len(mine)], dtype=torch.int32),
            torch.tensor([0, blocks], dtype=torch.int32),
            0,
            blocks,
            False,
        )
        for g in range(groups):
            ours = slice(g * shared, (g + 1) * shared)
            held = _Running(query[mine, ours].float() * scale, last)
            for j, (first, behind) in enumerate(
                zip(row_ptr[g, :-1].tolist(), row_ptr[g, 1:].tolist(), strict=True)
            ):
                if behind > first:
                    block = int(block_table[one, j])
                    count = min(page, int(last.max()) + 1 - j * page)
                    held.add(
                        q_ind[g, first:behind].long(),
                        key_cache[block, :count, g].float(),
                        value_cache[block, :count, g].float(),
                        j * page,
                    )
            summed, total = held.result()
            out[mine, ours] = summed.to(out.dtype)
            lse[mine, ours] = total
    return out, lse


class _Running:
    """Attention over keys that come block by block, for some queries of one request.

    Args:
        query: ``[t, h, D]`` float32, scaled.
        last: ``[t]`` int64, positions.
    """

    def __init__(self, query: torch.Tensor, last: torch.Tensor) -> None:
        lse = torch.full((*query.shape[:2], 1), _LOWEST)
        self._held = (query, last, lse, torch.zeros(query.shape))

    def add(
        self, tokens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int
    ) -> None:
        """Let queries ``tokens [n]`` attend to ``keys [c, D]`` of the positions from ``first``.

        Each of them sees at least the first of these positions.
        """
        step = max(1, _TILE_ELEMENTS // (self._held[0].shape[1] * keys.shape[0]))
        for part in tokens.split(step):
            start, behind = int(part[0]), int(part[-1]) + 1
            # Queries beside each other, as in short contexts, are views.
            if behind - start == len(part):
                self._attend(*(one[start:behind] for one in self._held), keys, values, first)
            else:
                some = [one.index_select(0, part) for one in self._held]
                self._attend(*some, keys, values, first)
                for to, one in zip(self._held[2:], some[2:], strict=True):
                    to.index_copy_(0, part, one)

    @staticmethod
    def _attend(*given: Any) -> None:
        """Bring ``lse`` and ``out`` up to date, in place."""
        query, last, lse, out, keys, values, first = given
        mask = None
        if int(last.min()) < first + keys.shape[0] - 1:
            hidden = first + torch.arange(keys.shape[0]) > last.view(-1, 1, 1)
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            mask = mask.expand(-1, query.shape[1], -1).reshape(1, 1, -1, keys.shape[0])
        # All heads are rows of one product; torch has no public call that gives the logarithm.
        added, more = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query.reshape(1, 1, -1, query.shape[2]),
            keys.view(1, 1, *keys.shape),
            values.view(1, 1, *values.shape),
            0.0,
            False,
            attn_mask=mask,
            scale=1.0,
        )
        more = more.view(lse.shape)
        both = torch.logaddexp(lse, more)
        out.mul_((lse - both).exp_()).addcmul_(added.view(out.shape), (more - both).exp_())
        lse.copy_(both)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``[t, h, D]`` and ``[t, h]``."""
        *_, lse, out = self._held
        return out, torch.where(lse > _LOWEST, lse, float("-inf")).squeeze(-1)
