"""Limits of clearing and copying states on NPUs; torch_npu has no operator for them."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal


def _without_gaps(states: torch.Tensor) -> bool:
    return not states.numel() or states[0].is_contiguous()


def supports_clear_states_triton(
    facts: DeviceFacts, states: torch.Tensor, slots: torch.Tensor, cleared: torch.Tensor | None
) -> Support:
    """States without gaps inside, of 1, 2, 4 or 8 bytes a value."""
    return first_refusal(
        (_without_gaps(states), "a state with gaps inside, the kernel writes it in one go"),
        (
            states.element_size() in (1, 2, 4, 8),
            f"values of {states.element_size()} bytes, the kernel moves 1, 2, 4 or 8",
        ),
    )


def supports_copy_states_triton(
    facts: DeviceFacts,
    states: torch.Tensor,
    block_table: torch.Tensor,
    source: torch.Tensor,
    destination: torch.Tensor,
    shift: torch.Tensor | None,
) -> Support:
    """As for clearing, and a table without gaps inside."""
    support = supports_clear_states_triton(facts, states, source, None)
    return support and first_refusal(
        (
            block_table.stride(1) == 1,
            f"a table with stride {block_table.stride(1)} inside, the kernel reads stride 1",
        )
    )
