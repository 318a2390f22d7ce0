"""Block-sparse attention block by block, as dense products, for a CPU with many queries.

Each block of a request is read once and multiplied with all queries that selected it, whose sums
and peaks are carried on from block to block.
"""

from __future__ import annotations

import torch

from ascend_attention.ops.block_csr.reference import k2q_csr

# Below every logit, above -inf, so that differences of peaks are numbers.
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
    tokens, heads, _width = query.shape
    page, groups = key_cache.shape[1:3]
    shared = heads // groups
    out = torch.empty_like(query)
    lse = torch.empty((tokens, heads))
    # The selection ends at the first unused place.
    selected = torch.where((selected >= 0).cumprod(dim=-1) > 0, selected, -1)
    for one in request.unique().tolist():
        mine = (request == one).nonzero().flatten()
        last = position[mine].long()
        blocks = int(last.max()) // page + 1
        if int(selected[mine].max()) >= block_table.shape[1]:
            raise IndexError(
                f"block {int(selected[mine].max())} is selected in a table of "
                f"{block_table.shape[1]} blocks a request"
            )
        row_ptr, q_ind, _ = k2q_csr(
            selected[mine],
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
    """A softmax over keys that come block by block, for some queries of one request.

    Args:
        query: ``[t, h, D]`` float32, scaled.
        last: ``[t]`` int64, positions.
    """

    def __init__(self, query: torch.Tensor, last: torch.Tensor) -> None:
        self._query = query
        self._last = last
        self._peak = torch.full((*query.shape[:2], 1), _LOWEST)
        self._total = torch.zeros((*query.shape[:2], 1))
        self._summed = torch.zeros(query.shape)

    def add(
        self, tokens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int
    ) -> None:
        """Let queries ``tokens [n]`` attend to ``keys [c, D]`` of the positions from ``first``."""
        step = max(1, _TILE_ELEMENTS // (self._query.shape[1] * keys.shape[0]))
        for part in tokens.split(step):
            last = self._last[part]
            logits = self._query[part] @ keys.T
            if int(last.min()) < first + keys.shape[0] - 1:
                hidden = first + torch.arange(keys.shape[0]) > last.view(-1, 1, 1)
                logits.masked_fill_(hidden, float("-inf"))
            before = self._peak[part]
            peak = torch.maximum(before, logits.amax(dim=-1, keepdim=True))
            weights = logits.sub_(peak).exp_()
            kept = (before - peak).exp_()
            self._peak[part] = peak
            self._total[part] = self._total[part].mul_(kept).add_(weights.sum(-1, keepdim=True))
            self._summed[part] = self._summed[part].mul_(kept).add_(weights @ values)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``[t, h, D]`` and ``[t, h]``."""
        some = self._total > 0
        total = torch.where(some, self._total, 1.0)
        lse = torch.where(some, self._peak + total.log(), float("-inf"))
        return self._summed / total, lse.squeeze(-1)
