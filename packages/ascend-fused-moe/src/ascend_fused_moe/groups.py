"""The ranks among which a layer's experts and tokens lie, over ``torch.distributed`` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from ascend_ops_core.communication import Group
from ascend_ops_core.errors import InvalidInputError
from torch import distributed

__all__ = [
    "MoEGroup",
    "ParallelGroups",
    "SingleRank",
    "TorchGroup",
    "parallel_groups",
    "single_rank",
]


class MoEGroup(Group, Protocol):
    """A group whose ranks also send each other different numbers of rows."""

    @property
    def name(self) -> str:
        """Name of the communicator, by which an operator finds it."""

    def all_to_all_rows(
        self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        """Rows from every rank.

        Args:
            rows: ``[sum(send), ...]``, those for rank 0 first.
            send: rows for each rank.
            receive: rows from each rank.

        Returns:
            ``[sum(receive), ...]``, those of rank 0 first.
        """


class SingleRank:
    """The group of one rank, which exchanges nothing.

    Attributes:
        rank_in_group: 0.
        world_size: 1.
        name: of no communicator.
    """

    rank_in_group = 0
    world_size = 1
    name = ""

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """``input_`` itself."""
        return input_

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """``input_`` itself."""
        return input_

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """``input_`` itself."""
        return input_

    def all_to_all_rows(
        self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        """``rows`` themselves."""
        return rows


class TorchGroup:
    """A ``torch.distributed`` process group.

    Args:
        group: the group, of which this process is a member.

    Attributes:
        rank_in_group: this rank's place.
        world_size: number of ranks.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank_in_group = distributed.get_rank(group)
        self.world_size = distributed.get_world_size(group)
        if self.rank_in_group < 0:
            raise InvalidInputError(
                f"group of {self.world_size} ranks",
                f"rank {distributed.get_rank()} is not a member",
                "Pass each rank a group that it belongs to.",
            )

    @property
    def name(self) -> str:
        """HCCL's name of the communicator on an NPU, elsewhere torch's name of the group."""
        backends = {str(device.type) for device in self._group._device_types}
        if "npu" in backends:
            backend = self._group._get_backend(torch.device("npu"))
            if hasattr(backend, "get_hccl_comm_name"):
                found: str = backend.get_hccl_comm_name(distributed.get_rank())
                return found
        return str(self._group.group_name)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, in a tensor of its own."""
        total = input_.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=self._group)
        return total

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors side by side along ``dim``."""
        first = input_.movedim(dim, 0).contiguous()
        gathered = first.new_empty(self.world_size * first.shape[0], *first.shape[1:])
        distributed.all_gather_single(gathered, first, group=self._group)
        return gathered.movedim(0, dim)

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part along ``dim`` of the sum over the ranks."""
        first = input_.movedim(dim, 0).contiguous()
        part = first.new_empty(first.shape[0] // self.world_size, *first.shape[1:])
        distributed.reduce_scatter_single(part, first, group=self._group)
        return part.movedim(0, dim)

    def all_to_all_rows(
        self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        """See :meth:`MoEGroup.all_to_all_rows`."""
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        distributed.all_to_all_single(
            received, rows.contiguous(), list(receive), list(send), group=self._group
        )
        return received


@dataclass(frozen=True)
class ParallelGroups:
    """How a layer is spread over ranks.

    Rank ``d * tp + t`` of the layer is tensor-parallel rank ``t`` of data-parallel part ``d``. The
    ranks of a part have the same tokens, or each a share of them (sequence parallelism). Experts
    lie on the ranks of ``ep``; where ``ep`` has one rank, every rank holds a slice of all experts.

    Attributes:
        tp: the ranks of this rank's data-parallel part.
        dp: the ranks with this rank's place in every part.
        ep: all ``dp * tp`` ranks in that order, or one rank.

    Raises:
        InvalidInputError: another number of expert-parallel ranks, or another order.
    """

    tp: MoEGroup
    dp: MoEGroup
    ep: MoEGroup

    def __post_init__(self) -> None:
        if self.ep.world_size not in (1, self.ranks):
            raise InvalidInputError(
                f"expert parallelism over {self.ep.world_size} ranks",
                f"the layer has {self.dp.world_size} x {self.tp.world_size} ranks",
                "Spread the experts over all of them, or over none.",
            )
        if self.expert_parallel and self.ep.rank_in_group != self.rank:
            raise InvalidInputError(
                f"expert-parallel rank {self.ep.rank_in_group}",
                f"part {self.dp.rank_in_group}, place {self.tp.rank_in_group} make it {self.rank}",
                "Order the group by data-parallel parts.",
            )

    @property
    def ranks(self) -> int:
        """Number of ranks of the layer."""
        return self.dp.world_size * self.tp.world_size

    @property
    def rank(self) -> int:
        """This rank among them."""
        return self.dp.rank_in_group * self.tp.world_size + self.tp.rank_in_group

    @property
    def expert_parallel(self) -> bool:
        """Whether whole experts lie on different ranks."""
        return self.ep.world_size > 1


def single_rank() -> ParallelGroups:
    """The groups of a layer that lies on one rank."""
    return ParallelGroups(SingleRank(), SingleRank(), SingleRank())


def parallel_groups(dp: int, tp: int, *, expert_parallel: bool = True) -> ParallelGroups:
    """The groups of the first ``dp * tp`` processes of ``torch.distributed``.

    Every process of the default group must make this call, since making a group is collective;
    one beyond the first ``dp * tp`` gets groups of itself alone, which it must not use.

    Args:
        dp: data-parallel parts.
        tp: ranks of a part.
        expert_parallel: spread the experts over all ranks; else each holds a slice of all.

    Raises:
        InvalidInputError: there are fewer processes.
    """
    world, rank = distributed.get_world_size(), distributed.get_rank()
    if dp * tp > world:
        raise InvalidInputError(
            f"{dp} x {tp} ranks", f"there are {world} processes", "Start one for each rank."
        )
    members = [
        [[d * tp + t for t in range(tp)] for d in range(dp)],
        [[d * tp + t for d in range(dp)] for t in range(tp)],
        [list(range(dp * tp))] if expert_parallel else [],
    ]
    tp_group, dp_group, ep_group = (_of(rank, lists) for lists in members)
    return ParallelGroups(tp_group, dp_group, ep_group)


def _of(rank: int, lists: list[list[int]]) -> MoEGroup:
    mine: MoEGroup = SingleRank()
    for ranks in lists:
        if len(ranks) > 1:
            group = distributed.new_group(ranks)
            if rank in ranks:
                mine = TorchGroup(group)
    return mine
