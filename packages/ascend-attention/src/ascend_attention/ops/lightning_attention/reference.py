"""Definitions of lightning attention, for any device.

Nothing is asked of the host that lies on the device. All pairs of tokens are weighed, those of
different requests with zero, so this is for short batches.
"""

from __future__ import annotations

import torch


def lightning_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.lightning_attention.lightning_attention`."""
    requests = query_start.shape[0] - 1
    if not query.shape[0] or not requests:
        return torch.zeros_like(value, memory_format=torch.contiguous_format)
    owner, place, count = _places(query.shape[0], query_start)
    used = torch.ones(requests, dtype=torch.bool, device=query.device)
    if states is None or slots is None:
        start = query.new_zeros(requests, *_state_shape(query, value), dtype=torch.float32)
    else:
        used = slots > 0
        held = used if has_state is None else used & has_state
        start = torch.where(_wide(held, 3), states[slots.long().clamp(min=0)].float(), 0.0)
    real = (owner < requests) & used[owner.clamp(max=requests - 1)]
    mine = owner.clamp(max=requests - 1)
    q, k, v = (_rows(x, real) for x in (query, key, value))
    # Heads first: [H, T, ...].
    lag = place.unsqueeze(1) - place
    seen = (owner.unsqueeze(1) == owner) & (lag >= 0)
    weight = torch.where(seen, torch.exp(-slopes.view(-1, 1, 1) * lag.clamp(min=0)), 0.0)
    within = (q @ k.transpose(1, 2) * weight) @ v
    decay = torch.exp(-slopes.unsqueeze(1) * (place + 1))
    before = torch.einsum("htd,thde->hte", q * decay.unsqueeze(2), start[mine])
    if states is not None and slots is not None:
        rest = (count[mine] - 1 - place).clamp(min=0)
        rows = k * torch.exp(-slopes.unsqueeze(1) * rest).unsqueeze(2)
        share = (mine == torch.arange(requests, device=query.device).unsqueeze(1)) & real
        added = torch.einsum("rt,htd,hte->rhde", share.float(), rows, v)
        after = start * torch.exp(-slopes * count.unsqueeze(1)).view(requests, -1, 1, 1) + added
        slot = torch.where(used, slots, 0).long()
        after = after.to(states.dtype)
        states[slot] = torch.where(_wide(used & (count > 0), 3), after, states[slot])
    total = torch.where(_wide(real, 2), (within + before).transpose(0, 1), 0.0)
    return total.to(value.dtype)


def lightning_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.lightning_attention.lightning_decode`."""
    out = torch.zeros_like(value, memory_format=torch.contiguous_format)
    requests, columns = slots.shape
    if not query.shape[0] or not requests:
        return out
    _, _, count = _places(query.shape[0], query_start)
    used = slots[:, 0] > 0
    column = torch.zeros_like(slots[:, 0]) if accepted is None else accepted - 1
    column = torch.where(used, column, 0).long()
    slot = slots.gather(1, column.unsqueeze(1))[:, 0].long()
    state = states[torch.where(used, slot, 0)].float()
    decay = torch.exp(-slopes).view(-1, 1, 1)
    last = query.shape[0] - 1
    for j in range(columns):
        taken = used & (count > j)
        token = (query_start[:-1].long() + j).clamp(max=last)
        token = torch.where(taken, token, last)
        k, v, q = (x[token].float() for x in (key, value, query))
        state = state * decay + k.unsqueeze(-1) * v.unsqueeze(-2)
        read = (q.unsqueeze(-1) * state).sum(dim=-2).to(value.dtype)
        # Requests without this token write what the last row has.
        out[token] = torch.where(_wide(taken, 2), read, out[token])
        kept = taken & (slots[:, j] > 0)
        to = torch.where(kept, slots[:, j], 0).long()
        states[to] = torch.where(_wide(kept, 3), state.to(states.dtype), states[to])
    return out


def _places(
    tokens: int, query_start: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Request and index within it of every token, and the tokens of every request."""
    start = query_start.long()
    token = torch.arange(tokens, device=query_start.device)
    owner = torch.searchsorted(start[1:].contiguous(), token, right=True)
    return owner, token - start[owner.clamp(max=len(start) - 1)], start[1:] - start[:-1]


def _state_shape(query: torch.Tensor, value: torch.Tensor) -> tuple[int, int, int]:
    return query.shape[1], query.shape[2], value.shape[2]


def _rows(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """``[H, T, D]`` float32, zeros where there is no request."""
    return torch.where(_wide(real, 2), x.float(), 0.0).transpose(0, 1)


def _wide(chosen: torch.Tensor, axes: int) -> torch.Tensor:
    return chosen.view(-1, *([1] * axes))
