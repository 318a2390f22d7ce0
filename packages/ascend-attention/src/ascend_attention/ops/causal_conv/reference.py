"""Definition of the causal convolution, for any device.

Nothing is asked of the host that lies on the device.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    query_start: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    accepted: torch.Tensor | None,
    most_tokens: int,
    silu: bool,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.causal_conv.causal_conv1d`."""
    tokens, channels = x.shape
    width, device = weight.shape[0], x.device
    requests = query_start.shape[0] - 1
    start = query_start.long()
    if not requests or not tokens:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    history = _history(x, width, requests, states, slots, has_state, accepted)
    token = torch.arange(tokens, device=device)
    owner = torch.searchsorted(start[1:].contiguous(), token, right=True)
    real = owner < requests
    owner = owner.clamp(max=requests - 1)
    place = token - start[owner]
    total = torch.zeros(tokens, channels, dtype=torch.float32, device=device)
    if bias is not None:
        total = total + bias.float()
    for tap in range(width):
        row = place + tap
        before = row < width - 1
        old = history[owner, row.clamp(0, width - 2)]
        new = x[(token + tap - (width - 1)).clamp(min=0)].float()
        total = total + weight[tap].float() * torch.where(before.unsqueeze(-1), old, new)
    if silu:
        total = F.silu(total)
    if slots is not None:
        real = real & (slots[owner] > 0)
    if states is not None and slots is not None:
        _keep(x, start, history, states, slots.long(), accepted is not None)
    return torch.where(real.unsqueeze(-1), total, 0.0).to(x.dtype)


def _history(
    x: torch.Tensor,
    width: int,
    requests: int,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    accepted: torch.Tensor | None,
) -> torch.Tensor:
    """``[R, W - 1, C]`` float32, the inputs before each request's tokens."""
    if states is None or slots is None:
        return x.new_zeros(requests, width - 1, x.shape[1], dtype=torch.float32)
    row = torch.arange(width - 1, device=x.device).expand(requests, -1)
    used = slots > 0
    if accepted is not None:
        row = row + torch.where(used, accepted.long() - 1, 0).unsqueeze(-1)
    found = states[slots.long().clamp(min=0).unsqueeze(-1), row].float()
    if has_state is not None:
        used = used & has_state
    return torch.where(used.view(-1, 1, 1), found, 0.0)


def _keep(
    x: torch.Tensor,
    start: torch.Tensor,
    history: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    all_rows: bool,
) -> None:
    """Write what the next step reads."""
    before = history.shape[1]
    count = (start[1:] - start[:-1]).unsqueeze(-1)
    row = torch.arange(states.shape[1] if all_rows else before, device=x.device)
    source = row + 1 if all_rows else row + count
    source = source.expand(len(slots), -1)
    token = (start[:-1].unsqueeze(-1) + source - before).clamp(0, x.shape[0] - 1)
    owner = torch.arange(len(slots), device=x.device).unsqueeze(-1)
    old = history[owner, source.clamp(max=before - 1)]
    values = torch.where((source < before).unsqueeze(-1), old, x[token].float())
    written = (count > 0) & (slots > 0).unsqueeze(-1) & (source < before + count)
    place = slots.clamp(min=0).unsqueeze(-1)
    kept = states[place, row]
    # Where nothing is written, the slot gets what it has; several requests may name slot 0.
    states[place, row] = torch.where(written.unsqueeze(-1), values.to(states.dtype), kept)
