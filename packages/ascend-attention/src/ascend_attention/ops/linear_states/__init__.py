"""Clears and copies states of linear attention in their slots.

A request's state lies in a slot, which is a block of vLLM's cache; slot 0 belongs to nobody. Where
prefixes are cached, every block boundary has a state of its own, so a request that passes one
copies its state into the next block before the step.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["clear_states", "copy_states"]


def clear_states(
    states: torch.Tensor, slots: torch.Tensor, cleared: torch.Tensor | None = None
) -> None:
    """Fill the states of some slots with zeros, whatever they hold.

    Args:
        states: ``[S, ...]`` of any dtype, one state for every slot; written.
        slots: ``[N]`` int32 or int64; below 1 nothing is cleared. ``N`` may be 0.
        cleared: ``[N]`` bool, which of them; all by default.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.
    """
    _check_slots(states, slots)
    if cleared is not None:
        require_shape("cleared", cleared, slots.shape[0])
        require_dtype("cleared", cleared, (torch.bool,))
    _CLEAR_STATES(states, slots, cleared)


def copy_states(
    states: torch.Tensor,
    block_table: torch.Tensor,
    source: torch.Tensor,
    destination: torch.Tensor,
    shift: torch.Tensor | None = None,
) -> None:
    """Copy the state of one block of each request into another of its blocks.

    Args:
        states: ``[S, ...]`` of any dtype, one state for every block; written.
        block_table: ``[R, nb]`` int32, the blocks of every request in order; ``R`` may be 0.
        source: ``[R]`` int32 or int64, the column of each request's state; negative where nothing
            is copied, as it is where both columns are the same, or a block below 1.
        destination: ``[R]`` of the same dtype, the column that gets it. No block is written that
            another request reads or writes.
        shift: ``[R]`` int32 or int64, at least 0: the copy begins with this row of the source's
            axis 1, and as many rows at the end of the destination stay what they were. States of a
            convolution are shifted by the accepted drafts. 0 by default.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.

    Source: vLLM's ``v1/worker/mamba_utils.py`` (prefix caching by aligned blocks).
    """
    require_at_least("axes of states", states.dim(), 1)
    require_shape("block_table", block_table, None, None)
    require_dtype("block_table", block_table, (torch.int32,))
    for name, column in (("source", source), ("destination", destination)):
        require_shape(name, column, block_table.shape[0])
        require_dtype(name, column, INDICES)
    if shift is not None:
        require_shape("shift", shift, block_table.shape[0])
        require_dtype("shift", shift, INDICES)
        require_at_least("axes of states with shift", states.dim(), 2)
    _COPY_STATES(states, block_table, source, destination, shift)


def _check_slots(states: torch.Tensor, slots: torch.Tensor) -> None:
    require_at_least("axes of states", states.dim(), 1)
    require_shape("slots", slots, None)
    require_dtype("slots", slots, INDICES)
    if slots.numel() and not states.shape[0]:
        raise InvalidInputError(
            f"states of shape {list(states.shape)}", "slots need a state", "Pass the cache."
        )


_CLEAR_STATES = declare(
    __name__,
    "clear_states(Tensor(a!) states, Tensor slots, Tensor? cleared) -> ()",
    npu=("triton", "torch"),
    fake=lambda *args: None,
)

_COPY_STATES = declare(
    __name__,
    "copy_states(Tensor(a!) states, Tensor block_table, Tensor source, Tensor destination, "
    "Tensor? shift) -> ()",
    npu=("triton", "torch"),
    fake=lambda *args: None,
)
