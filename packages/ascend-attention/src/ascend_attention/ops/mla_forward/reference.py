"""Definition of latent attention: keys and values of every head, context chunk after chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Keys and values of one chunk of a context, and logits of one tile of tokens, in elements: large
# enough for efficient products, small enough to stay in cache.
_CHUNK_ELEMENTS = 1 << 21
_TILE_ELEMENTS = 1 << 20
_LEAST_CHUNK = 64


def mla_forward(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    kv_b: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    query_ends: Sequence[int] = (),
    seq_lens: Sequence[int] = (),
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.mla_forward.mla_forward`."""
    tokens, heads, nope = q_nope.shape
    out = q_nope.new_zeros((tokens, heads, kv_b.shape[1] - nope))
    query = torch.cat([q_nope, q_rope], dim=-1).transpose(0, 1).float()
    real = position >= 0
    for one in request[real].unique().tolist():
        here = (real & (request == one)).nonzero().flatten()
        rows = latents, ropes, block_table[one]
        values = expanded(query[:, here], *rows, kv_b, position[here], scale)
        out[here] = values.transpose(0, 1).to(out.dtype)
    return out


def expanded(
    query: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    table: torch.Tensor,
    kv_b: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """``[H, T, V]`` float32 of tokens of one request.

    Args:
        query: ``[H, T, N + R]`` float32.
        latents: ``[B, P, L]``.
        ropes: ``[B, P, R]``.
        table: ``[nb]`` blocks of the request.
        kv_b: ``[H, N + V, L]``.
        position: ``[T]``, none negative, in ascending order.
        scale: factor on the dot products.
    """
    heads, tokens, width = query.shape
    nope = width - ropes.shape[2]
    first, context = int(position[0]), int(position[-1]) + 1
    up = kv_b.float()
    per_block = latents.shape[1]
    fitting = max(_CHUNK_ELEMENTS // (heads * up.shape[1]), _LEAST_CHUNK)
    chunk = max(fitting // per_block, 1) * per_block
    out = query.new_zeros((heads, tokens, up.shape[1] - nope))
    lse = query.new_full((heads, tokens), float("-inf"))
    for start in range(0, context, chunk):
        stop = min(start + chunk, context)
        used = table[start // per_block : -(-stop // per_block)].long()
        latent, rope = (
            cache[used].flatten(0, 1)[: stop - start].float() for cache in (latents, ropes)
        )
        both = latent @ up.mT
        keys = torch.cat([both[..., :nope], rope.expand(heads, -1, -1)], dim=-1).mT
        # Tokens in front of the chunk see nothing of it.
        seeing = max(start - first, 0)
        tile = max(_TILE_ELEMENTS // (heads * (stop - start)), 1)
        for begin in range(seeing, tokens, tile):
            part = slice(begin, min(begin + tile, tokens))
            logits = torch.bmm(query[:, part], keys).mul_(scale)
            if stop - 1 > int(position[begin]):
                hidden = torch.arange(start, stop, device=lse.device) > position[part, None]
                logits.masked_fill_(hidden, float("-inf"))
            own = logits.logsumexp(dim=-1)
            # A token that sees nothing of this chunk has no weight in it.
            seen = own.masked_fill(own == float("-inf"), 0)
            weights = logits.sub_(seen.unsqueeze(-1)).exp_()
            total = torch.logaddexp(lse[:, part], own)
            summed = torch.bmm(weights, both[..., nope:])
            out[:, part] *= (lse[:, part] - total).exp_().unsqueeze(-1)
            out[:, part] += summed * (own - total).exp_().unsqueeze(-1)
            lse[:, part] = total
    return out
