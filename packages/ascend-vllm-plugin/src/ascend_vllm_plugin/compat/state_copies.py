"""Copies recurrent states between the blocks of a request, where hybrid models cache prefixes.

Upstream symbols (0.27.1): ``collect_mamba_copy_meta``, ``do_mamba_copy_block`` and
``MambaSpecDecodeGPUContext`` of ``vllm.v1.worker.mamba_utils``. They launch Triton kernels of
vLLM's own over raw addresses; of those that serve drafts a CPU has no counterpart, and an NPU has
none of any. Ours say the same in blocks, for :mod:`ascend_attention.ops.linear_states`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from ascend_attention.ops.linear_states import copy_states
from ascend_attention.step import to_device
from vllm.model_executor.layers.mamba.mamba_utils import get_conv_copy_spec
from vllm.v1.worker import mamba_utils
from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext

__all__ = ["StateCopies", "use_state_copies"]


class _State(NamedTuple):
    """One state of one layer: its slots, and whether they slide with the accepted drafts."""

    slots: torch.Tensor
    slides: bool


class _Copy(NamedTuple):
    """A request's copy in one group: blocks to read, with and without drafts, and one to write."""

    source: int
    drafted: int
    destination: int
    shift: int


def _states(
    layer_names: Sequence[str], forward_context: dict[str, Any], copy_funcs: Sequence[Any]
) -> Iterator[_State]:
    for name in layer_names:
        caches = forward_context[name].kv_cache
        for slots, function in zip(caches, copy_funcs, strict=True):
            yield _State(slots, function is get_conv_copy_spec)


_pending: dict[int, tuple[list[_State], list[_Copy]]] = {}
"""Copies of this step that are collected and not made yet, by group."""


def collect_copies(
    copy_bufs: Any,
    kv_cache_config: Any,
    mamba_state_copy_funcs: Sequence[Any],
    mamba_group_ids: Sequence[int],
    src_block_idx: int,
    dest_block_idx: int,
    accept_token_bias: int,
    req_state: Any,
    forward_context: dict[str, Any],
) -> None:
    """``collect_mamba_copy_meta``: remember which states of a request move.

    Args:
        copy_bufs: its ``offset`` counts what is collected, and is 0 when a step begins.
        kv_cache_config: the groups of layers.
        mamba_state_copy_funcs: for every state of a layer how it moves.
        mamba_group_ids: groups of layers with states.
        src_block_idx: column of the block that has the state.
        dest_block_idx: column of the block that gets it.
        accept_token_bias: accepted drafts that the state is behind.
        req_state: the request, with the blocks of every group.
        forward_context: layers by name.
    """
    if copy_bufs.offset == 0:
        _pending.clear()
    if src_block_idx == dest_block_idx and accept_token_bias == 0:
        return
    copy_bufs.offset += 1
    for group in mamba_group_ids:
        if group not in _pending:
            names = kv_cache_config.kv_cache_groups[group].layer_names
            states = list(_states(names, forward_context, mamba_state_copy_funcs))
            _pending[group] = (states, [])
        blocks = req_state.block_ids[group]
        _pending[group][1].append(
            _Copy(
                blocks[src_block_idx],
                blocks[src_block_idx + accept_token_bias],
                blocks[dest_block_idx],
                accept_token_bias,
            )
        )


def make_copies(copy_bufs: Any) -> None:
    """``do_mamba_copy_block``: move what was collected.

    Args:
        copy_bufs: see :func:`collect_copies`.
    """
    if copy_bufs.offset == 0:
        return
    for states, copies in _pending.values():
        device = states[0].slots.device
        columns = torch.tensor(copies).unbind(1)
        *blocks, shift = to_device(device, *columns)
        table = torch.stack(blocks, dim=1).int()
        first, second, last = (
            torch.full((len(copies),), i, dtype=torch.int32, device=device) for i in range(3)
        )
        for slots, slides in states:
            source = first if slides else second
            copy_states(slots, table, source, last, shift if slides else None)
    _pending.clear()


class StateCopies(MambaSpecDecodeGPUContext):
    """vLLM's context for drafts: what moves before and after a step, decided on the device."""

    is_initialized: bool

    def initialize_from_forward_context(
        self,
        kv_cache_config: Any,
        forward_context: dict[str, Any],
        mamba_state_copy_funcs: Sequence[Any],
        block_tables: list[torch.Tensor],
    ) -> None:
        """Find the states and the buffers of block tables, which stay where they are."""
        if self.is_initialized:
            return
        self.groups = [
            (
                _whole(table),
                list(
                    _states(
                        kv_cache_config.kv_cache_groups[group].layer_names,
                        forward_context,
                        mamba_state_copy_funcs,
                    )
                ),
            )
            for group, table in zip(self.mamba_group_ids, block_tables, strict=True)
        ]
        self.is_initialized = True

    def run_fused_precopy(
        self,
        num_reqs: int,
        state_idx_gpu: torch.Tensor,
        src_col_gpu: torch.Tensor,
        token_bias_gpu: torch.Tensor,
        idx_mapping: torch.Tensor | None,
    ) -> None:
        """Move the states of requests that go on in another block.

        Args:
            num_reqs: ``R``.
            state_idx_gpu: ``[>= R]``, column of the block that the step works in.
            src_col_gpu: ``[>= R]``, column of the state; negative where it stays.
            token_bias_gpu: ``[>= R]``, accepted drafts that it is behind.
            idx_mapping: None in vLLM's V1 runner.
        """
        if num_reqs == 0 or not self.is_initialized:
            return
        assert idx_mapping is None
        self._move(
            num_reqs,
            src_col_gpu[:num_reqs].long(),
            state_idx_gpu[:num_reqs].long(),
            token_bias_gpu[:num_reqs].long(),
        )

    def run_fused_postprocess(
        self,
        num_reqs: int,
        num_accepted_tokens_gpu: torch.Tensor,
        mamba_state_idx_gpu: torch.Tensor,
        num_scheduled_tokens_gpu: torch.Tensor,
        num_computed_tokens_gpu: torch.Tensor,
        num_draft_tokens_gpu: torch.Tensor,
    ) -> None:
        """Keep the state at the end of a block that accepted drafts went beyond.

        Args:
            num_reqs: ``R``.
            num_accepted_tokens_gpu: ``[>= R]``, tokens that the step keeps, at least one.
            mamba_state_idx_gpu: ``[>= R]``, column of the block that the step worked in.
            num_scheduled_tokens_gpu: ``[>= R]``, tokens of the step.
            num_computed_tokens_gpu: ``[>= R]``, tokens before it.
            num_draft_tokens_gpu: ``[>= R]``, drafts among its tokens.
        """
        if num_reqs == 0 or not self.is_initialized:
            return
        given = (
            num_accepted_tokens_gpu,
            mamba_state_idx_gpu,
            num_scheduled_tokens_gpu,
            num_computed_tokens_gpu,
            num_draft_tokens_gpu,
        )
        accepted, column, scheduled, computed, drafted = (one[:num_reqs].long() for one in given)
        sure = computed + scheduled - drafted
        end = (sure + accepted - 1).div(self.block_size, rounding_mode="floor") * self.block_size
        passed = end >= sure
        destination = end // self.block_size - 1
        # Where the end lies in the block at work, the state there is the first one from now on.
        stays = passed & (destination == column)
        self.num_accepted_tokens_out[:num_reqs] = torch.where(stays, 1, accepted).int()
        source = torch.where(passed, column, -1)
        self._move(num_reqs, source, destination, torch.where(passed, end - sure, 0))

    def _move(
        self,
        requests: int,
        source: torch.Tensor,
        destination: torch.Tensor,
        shift: torch.Tensor,
    ) -> None:
        drafted = torch.where(source < 0, source, source + shift)
        in_place = torch.where((source >= 0) & (source == destination), shift, 0)
        for table, states in self.groups:
            own = table[:requests]
            for slots, slides in states:
                if not slides:
                    copy_states(slots, own, drafted, destination)
                    continue
                copy_states(slots, own, source, destination, shift)
                block = own.gather(1, source.clamp(min=0).unsqueeze(1))[:, 0].long()
                _slide(slots, torch.where(in_place > 0, block, 0), in_place)


def _slide(slots: torch.Tensor, block: torch.Tensor, shift: torch.Tensor) -> None:
    """Move the rows of some slots to the front, each within its own; slot 0 stays as it is."""
    rows = slots.shape[1]
    behind = torch.arange(rows, device=slots.device) + shift.unsqueeze(1)
    found = slots[block.unsqueeze(1), behind.clamp(max=rows - 1)]
    moves = (behind < rows) & (block > 0).unsqueeze(1)
    slots[block] = torch.where(moves.unsqueeze(2), found, slots[block])


def _whole(table: torch.Tensor) -> torch.Tensor:
    """All rows of a persistent block table, of which vLLM gives those of the first step."""
    values = table.untyped_storage().nbytes() // table.element_size()
    return table.as_strided((values // table.stride(0), table.shape[1]), table.stride(), 0)


def use_state_copies() -> None:
    """Put ours where vLLM's runner looks; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no function of that name in that module any more.
    """
    for name, ours in (
        ("collect_mamba_copy_meta", collect_copies),
        ("do_mamba_copy_block", make_copies),
        ("MambaSpecDecodeGPUContext", StateCopies),
    ):
        getattr(mamba_utils, name)
        setattr(mamba_utils, name, ours)
