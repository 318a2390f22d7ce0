"""Which tokens the chunks of a ragged batch hold, in tensors whose shapes the host knows."""

from __future__ import annotations

from itertools import pairwise

import torch

CHUNK = 64
"""Tokens of a chunk, counted from the first token of a request in the step."""


BLOCK = 16
"""Tokens whose products are decayed channel by channel together."""


def chunk_table(cu_seqlens: torch.Tensor, tokens: int) -> torch.Tensor:
    """Say where the chunks of a ragged batch begin and end; the host is asked for nothing.

    The chunks of a request follow each other, and those of different requests share no token. A
    step of ``T`` tokens and ``R`` requests has at most ``T // CHUNK + R`` of them, so that is how
    many rows there are.

    Args:
        cu_seqlens: ``[R + 1]`` int32 or int64, where the tokens of each request begin and end.
        tokens: ``T``, at least ``cu_seqlens[R]``.

    Returns:
        ``[T // CHUNK + R, 2]`` int32, first token and number of tokens (1 to ``CHUNK``) of every
        chunk; rows that are left over have 0 tokens.
    """
    requests = cu_seqlens.shape[0] - 1
    rows = tokens // CHUNK + requests
    bounds = cu_seqlens.long()
    ends = ((bounds.diff() + CHUNK - 1) // CHUNK).cumsum(0)
    number = torch.arange(rows, device=cu_seqlens.device)
    if not requests:
        return torch.zeros((rows, 2), dtype=torch.int32, device=cu_seqlens.device)
    # Requests without tokens have no chunk, and the first that ends behind a chunk owns it.
    owner = torch.searchsorted(ends, number, right=True)
    real = owner < requests
    owner = owner.clamp(max=requests - 1)
    before = torch.where(owner > 0, ends[(owner - 1).clamp(min=0)], 0)
    first = bounds[owner] + (number - before) * CHUNK
    count = torch.where(real, (bounds[owner + 1] - first).clamp(max=CHUNK), 0)
    return torch.stack((torch.where(real, first, 0), count), dim=1).int()


def spans(
    cu_seqlens: torch.Tensor, tokens: int, state_indices: torch.Tensor, slots: int
) -> list[tuple[int, int]]:
    """Where the tokens of each request begin and end, on the host, if tokens and slots exist.

    Args:
        cu_seqlens: ``[R + 1]`` int32.
        tokens: of the step.
        state_indices: slots that requests name.
        slots: how many there are.

    Raises:
        IndexError: tokens behind the step's, a request that ends before it begins, or a slot that
            does not exist.
    """
    found = list(pairwise(cu_seqlens.tolist()))
    for first, last in found:
        if not 0 <= first <= last <= tokens:
            raise IndexError(f"a request of the tokens from {first} to {last} of {tokens}")
    most = int(state_indices.max()) if state_indices.numel() else 0
    if most >= slots:
        raise IndexError(f"slot {most} of a state of {slots} slots")
    return found
