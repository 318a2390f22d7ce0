"""Definition of attention over paged latents."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Logits of one tile of tokens, in elements: large enough for efficient products, small enough to
# stay in cache.
_TILE_ELEMENTS = 1 << 21


def mla_attention(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    query_ends: Sequence[int] = (),
    seq_lens: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.mla_attention.mla_attention`."""
    out = torch.zeros_like(q_latent, memory_format=torch.contiguous_format)
    lse = torch.full(q_latent.shape[:2], float("-inf"), device=out.device)
    query = torch.cat([q_latent, q_rope], dim=-1).float()
    heads, width = q_latent.shape[1:]
    real = position >= 0
    for one in request[real].unique().tolist():
        tokens = (real & (request == one)).nonzero().flatten()
        last = position[tokens]
        context = int(last.max()) + 1
        rows = _rows(latents, ropes, block_table[one], context)
        tile = max(1, _TILE_ELEMENTS // (heads * context))
        for start in range(0, len(tokens), tile):
            part = slice(start, start + tile)
            here = tokens[part]
            seen = int(last[part].max()) + 1
            keys = rows[:seen]
            logits = (query[here].flatten(0, 1) @ keys.T).view(len(here), heads, seen).mul_(scale)
            hidden = torch.arange(seen, device=out.device) > last[part].unsqueeze(-1)
            logits.masked_fill_(hidden.unsqueeze(1), float("-inf"))
            total = logits.logsumexp(dim=-1)
            weights = logits.sub_(total.unsqueeze(-1)).exp_()
            summed = weights.flatten(0, 1) @ keys[:, :width]
            out[here] = summed.view(len(here), heads, width).to(out.dtype)
            lse[here] = total
    return out, lse


def _rows(
    latents: torch.Tensor, ropes: torch.Tensor, table: torch.Tensor, context: int
) -> torch.Tensor:
    """``[context, L + R]`` float32 rows of one request."""
    used = table[: -(-context // latents.shape[1])].long()
    both = torch.cat([latents[used], ropes[used]], dim=-1)
    return both.flatten(0, 1)[:context].float()
