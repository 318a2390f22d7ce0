"""Lightning attention on a CPU: dense products, one chunk of a request after the other."""

from __future__ import annotations

import torch

# Long enough for efficient products, short enough that most of them are not thrown away.
_CHUNK = 64


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
    out = torch.zeros_like(value, memory_format=torch.contiguous_format)
    start = query_start.tolist()
    slot = [1] * (len(start) - 1) if slots is None else slots.tolist()
    held = [states is not None] * len(slot) if has_state is None else has_state.tolist()
    place = torch.arange(_CHUNK)
    lag = place.unsqueeze(1) - place
    weight = torch.where(lag >= 0, torch.exp(-slopes.view(-1, 1, 1) * lag.clamp(min=0)), 0.0)
    decay = torch.exp(-slopes.unsqueeze(1) * (place + 1)).unsqueeze(2)
    for r, number in enumerate(slot):
        first, last = start[r], start[r + 1]
        if number < 1 or first == last:
            continue
        state = query.new_zeros(query.shape[1], query.shape[2], value.shape[2], dtype=torch.float32)
        if states is not None and held[r]:
            state = states[number].float()
        for begin in range(first, last, _CHUNK):
            part = slice(begin, min(begin + _CHUNK, last))
            q, k, v = (x[part].float().transpose(0, 1) for x in (query, key, value))
            n = q.shape[1]
            within = (q @ k.transpose(1, 2) * weight[:, :n, :n]) @ v
            out[part] = (within + q * decay[:, :n] @ state).transpose(0, 1).to(out.dtype)
            # The last token's key is not decayed, the first one's by all that follow.
            rest = torch.exp(-slopes.unsqueeze(1) * (n - 1 - place[:n])).unsqueeze(2)
            state = state * decay[:, n - 1 : n] + (k * rest).transpose(1, 2) @ v
        if states is not None:
            states[number] = state.to(states.dtype)
    return out
