"""The order of products on a CPU, request by request."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_attention.ops.mla_attention import mla_attention
from ascend_attention.ops.mla_forward.reference import expanded

# The kernel of the absorbed order takes up to so many.
_FEW_TOKENS = 16


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
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.mla_forward.mla_forward`."""
    given = latents, ropes, kv_b, block_table
    long = _long_requests(q_nope, kv_b, request, position)
    if not long:
        return absorbed(q_nope, q_rope, *given, request, position, scale)
    heads, nope = q_nope.shape[1:]
    out = q_nope.new_zeros((q_nope.shape[0], heads, kv_b.shape[1] - nope))
    rest = torch.ones(len(request), dtype=torch.bool)
    for one in long:
        here = ((request == one) & (position >= 0)).nonzero().flatten()
        rest[here] = False
        query = torch.cat([q_nope[here], q_rope[here]], dim=-1).transpose(0, 1).float()
        values = expanded(query, latents, ropes, block_table[one], kv_b, position[here], scale)
        out[here] = values.transpose(0, 1).to(out.dtype)
    if bool(rest.any()):
        out[rest] = absorbed(
            q_nope[rest], q_rope[rest], *given, request[rest], position[rest], scale
        )
    return out


def absorbed(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    kv_b: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The same with queries in the space of latents."""
    nope = q_nope.shape[2]
    q_latent = torch.bmm(q_nope.transpose(0, 1), kv_b[:, :nope]).transpose(0, 1)
    attended, _ = mla_attention(
        q_latent, q_rope, latents, ropes, block_table, request, position, scale
    )
    return torch.bmm(attended.transpose(0, 1), kv_b[:, nope:].mT).transpose(0, 1)


def _long_requests(
    q_nope: torch.Tensor, kv_b: torch.Tensor, request: torch.Tensor, position: torch.Tensor
) -> list[int]:
    """Requests for which keys and values of every head take fewer multiplications."""
    both, rank = kv_b.shape[1:]
    # Per pair of tokens, while expanding costs as much for every token of the context as absorbing
    # does for every token of the step.
    saved = 2 * rank - both
    if len(request) <= _FEW_TOKENS or saved <= 0:
        return []
    counts = torch.bincount(request[position >= 0]).tolist()
    long = []
    for one, count in enumerate(counts):
        if count <= _FEW_TOKENS:
            continue
        context = int(position[request == one].max()) + 1
        pairs = count * (context - (count - 1) / 2)
        if pairs * saved > (context - count) * both * rank:
            long.append(one)
    return long
