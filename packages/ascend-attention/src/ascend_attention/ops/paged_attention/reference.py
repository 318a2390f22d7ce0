"""Definition of attention over a paged cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Logits of one tile of tokens, in elements: large enough for efficient products, small enough to
# stay in cache.
_TILE_ELEMENTS = 1 << 21


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    window: int,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.paged_attention.paged_attention`; 0 is no window."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    lse = torch.full(query.shape[:2], float("-inf"), device=query.device)
    heads, key_heads = query.shape[1], key_cache.shape[2]
    sink = None if sinks is None else sinks.float().view(key_heads, 1, heads // key_heads)
    real = position >= 0
    for one in request[real].unique().tolist():
        tokens = (real & (request == one)).nonzero().flatten()
        last = position[tokens]
        context = int(last.max()) + 1
        keys = _rows(key_cache, block_table[one], context)
        values = _rows(value_cache, block_table[one], context)
        tile = max(1, _TILE_ELEMENTS // (heads * context))
        for start in range(0, len(tokens), tile):
            here, ends = tokens[start : start + tile], last[start : start + tile]
            grouped = query[here].float().unflatten(1, (key_heads, -1))
            logits = torch.einsum("tkgd,skd->ktgs", grouped, keys) * scale
            row = torch.arange(context, device=out.device)
            hidden = row > ends.unsqueeze(-1)
            if window:
                hidden |= row <= ends.unsqueeze(-1) - window
            logits.masked_fill_(hidden.unsqueeze(1), float("-inf"))
            total = logits.logsumexp(dim=-1)
            if sink is not None:
                total = torch.logaddexp(total, sink)
            weights = (logits - total.unsqueeze(-1)).exp()
            summed = torch.einsum("ktgs,skd->tkgd", weights, values)
            out[here] = summed.flatten(1, 2).to(out.dtype)
            lse[here] = total.transpose(0, 1).flatten(1)
    return out, lse


def _rows(cache: torch.Tensor, table: torch.Tensor, context: int) -> torch.Tensor:
    """``[context, K, D]`` float32 rows of one request."""
    used = table[: -(-context // cache.shape[1])].long()
    return cache[used].flatten(0, 1)[:context].float()
