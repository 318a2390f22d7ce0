"""Limits of lightning attention on NPUs; torch_npu has no operator for it. Not run on hardware."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MOST_WIDTH = 128


def supports_lightning_attention_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
) -> Support:
    """Heads of up to 128; values without gaps inside a head."""
    return _fits(query, key, value, states)


def supports_lightning_decode_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
) -> Support:
    """The same."""
    return _fits(query, key, value, states)


def _fits(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, states: torch.Tensor | None
) -> Support:
    width = max(query.shape[2], value.shape[2])
    return first_refusal(
        (width <= _MOST_WIDTH, f"heads of {width}, the kernel takes {_MOST_WIDTH}"),
        (
            all(x.stride(2) == 1 or x.shape[2] == 1 for x in (query, key, value)),
            "heads with gaps inside, the kernel reads stride 1",
        ),
        (
            states is None or not states.numel() or states[0].is_contiguous(),
            "a state with gaps inside, the kernel reads it in rows",
        ),
    )
