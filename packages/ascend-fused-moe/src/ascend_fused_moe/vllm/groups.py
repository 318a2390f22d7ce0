"""A layer's ranks, from vLLM's groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.distributed.parallel_state import (
    GroupCoordinator,
    get_dp_group,
    get_ep_group,
    get_tp_group,
)
from vllm.forward_context import get_forward_context, is_forward_context_available

from ascend_fused_moe.groups import MoEGroup, ParallelGroups, SingleRank, TorchGroup

__all__ = ["VllmGroup", "own_rows", "tokens_of_replicas", "vllm_groups"]


class VllmGroup:
    """A ``GroupCoordinator``, whose collectives go through the platform's communicator.

    Args:
        group: of more than one rank.
    """

    def __init__(self, group: GroupCoordinator) -> None:
        self._group = group
        self._torch = TorchGroup(group.device_group)
        self.rank_in_group: int = group.rank_in_group
        self.world_size: int = group.world_size

    @property
    def name(self) -> str:
        """See :attr:`ascend_fused_moe.groups.TorchGroup.name`."""
        return self._torch.name

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks; on a CPU ``input_`` itself holds it."""
        return self._group.all_reduce(input_)

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors side by side along ``dim``."""
        gathered: torch.Tensor = self._group.all_gather(input_.contiguous(), dim)
        return gathered

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part along ``dim`` of the sum over the ranks."""
        return self._group.reduce_scatter(input_.contiguous(), dim)

    def all_to_all_rows(
        self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        """See :meth:`ascend_fused_moe.groups.MoEGroup.all_to_all_rows`."""
        return self._torch.all_to_all_rows(rows, send, receive)


def vllm_groups(*, expert_parallel: bool) -> ParallelGroups:
    """The ranks of this process's layers, after vLLM has made its groups.

    Args:
        expert_parallel: spread the experts over the ranks of all data-parallel replicas, which
            then share each other's tokens; else a replica keeps to itself, and each of its ranks
            holds a slice of all experts.

    Raises:
        InvalidInputError: vLLM's expert-parallel group has other ranks than its tensor- and
            data-parallel groups, as with prefill context parallelism.
    """
    tp = _of(get_tp_group())
    if not expert_parallel:
        return ParallelGroups(tp, SingleRank(), SingleRank())
    dp, ep = _of(get_dp_group()), _of(get_ep_group())
    if ep.world_size != tp.world_size * dp.world_size:
        raise InvalidInputError(
            f"an expert-parallel group of {ep.world_size} ranks",
            f"there are {dp.world_size} replicas of {tp.world_size} tensor-parallel ranks",
            "Serve without context parallelism, or without expert parallelism.",
        )
    return ParallelGroups(tp, dp, ep)


def tokens_of_replicas() -> tuple[int, ...] | None:
    """Tokens of every data-parallel replica in this step, padding included.

    Returns:
        None where vLLM has not told, as it does not for a single one.
    """
    across = get_forward_context().dp_metadata if is_forward_context_available() else None
    return None if across is None else tuple(across.num_tokens_across_dp_cpu.tolist())


def own_rows(groups: ParallelGroups) -> tuple[int, int] | None:
    """Half-open range of this replica's rows among those that replicas gathered in this step.

    Args:
        groups: the layer's ranks.

    Returns:
        None where there is one replica, whose rows are all of them.
    """
    tokens = tokens_of_replicas()
    if tokens is None or groups.dp.world_size == 1:
        return None
    place = groups.dp.rank_in_group
    first = sum(tokens[:place])
    return first, first + tokens[place]


def _of(group: GroupCoordinator) -> MoEGroup:
    return SingleRank() if group.world_size == 1 else VllmGroup(group)
