"""The ways of communication: one dispatcher and one way of sharing tokens each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.communication.prepare_finalize import (
    PrepareAndFinalize,
    PrepareAndFinalizeWithAll2All,
    PrepareAndFinalizeWithAllGather,
    PrepareAndFinalizeWithMC2,
)
from ascend_fused_moe.dispatchers import (
    MoETokenDispatcher,
    TokenDispatcherWithAll2AllV,
    TokenDispatcherWithAllGather,
    TokenDispatcherWithMC2,
)
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.experts_mlp import ExpertsMlp
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.mlp.lora import MoELoRAContext, RowsLoRA
from ascend_fused_moe.pipeline import (
    FusedExpertsResult,
    MoEPrepareOutput,
    MoERouterInput,
    MoETokenDispatchInput,
)

__all__ = [
    "AllGatherCommImpl",
    "AlltoAllCommImpl",
    "FusedMC2CommImpl",
    "FusedMC2Operator",
    "MC2CommImpl",
    "MoECommMethod",
    "MoECommType",
]


class MoECommType(Enum):
    """Names of the ways of communication, as configurations spell them."""

    ALLGATHER = "all_gather"
    ALLTOALL = "all_to_all"
    MC2 = "mc2"
    FUSED_MC2 = "fused_mc2"


class MoECommMethod(ABC):
    """What a layer calls around and between routing and the experts' products.

    Args:
        groups: the layer's ranks.
        partition: which rank holds which expert; of one rank where ``groups`` spread no experts.
        sequence_parallel: see :class:`PrepareAndFinalize`.

    Attributes:
        kind: which way it is.

    Raises:
        InvalidInputError: the partition has another number of ranks than the groups.
    """

    kind: MoECommType

    def __init__(
        self,
        groups: ParallelGroups,
        partition: ExpertPartition,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        if partition.ranks != groups.ep.world_size:
            raise InvalidInputError(
                f"experts on {partition.ranks} ranks",
                f"there are {groups.ep.world_size} expert-parallel ranks",
                "Make the partition for the group.",
            )
        self.groups = groups
        self.partition = partition
        self.prepare_finalize = self._prepare_finalize(sequence_parallel)
        self.dispatcher = self._dispatcher()

    @property
    def output_is_reduced(self) -> bool:
        """See :attr:`PrepareAndFinalize.output_is_reduced`."""
        return self.prepare_finalize.output_is_reduced

    def prepare(
        self, given: MoERouterInput, tokens: Sequence[int] | None = None
    ) -> MoEPrepareOutput:
        """See :meth:`PrepareAndFinalize.prepare`."""
        return self.prepare_finalize.prepare(given, tokens)

    def finalize(self, routed: torch.Tensor, prepared: MoEPrepareOutput) -> torch.Tensor:
        """See :meth:`PrepareAndFinalize.finalize`."""
        return self.prepare_finalize.finalize(routed, prepared)

    def fused_experts(
        self,
        given: MoETokenDispatchInput,
        mlp: ExpertsMlp,
        lora: MoELoRAContext | None = None,
    ) -> FusedExpertsResult:
        """Dispatch the rows, run the experts and combine their results.

        Args:
            given: rows and their choices, with their adapters where ``lora`` is given.
            mlp: this rank's experts, :attr:`ExpertPartition.capacity` of them.
            lora: the adapters; None for none.

        Raises:
            InvalidInputError: adapters of experts that take none, or a way that carries none.
        """
        dispatched = self.dispatcher.token_dispatch(given)
        # A rank whose experts have no rows has nothing to launch, but is waited for at the combine.
        rows = dispatched.rows
        if rows.shape[0]:
            options = {}
            if lora is not None:
                assert dispatched.adapters is not None
                options["lora"] = RowsLoRA(lora, dispatched.adapters)
            rows = mlp(rows, dispatched.group_list, **options)
        routed = self.dispatcher.token_combine(rows, dispatched.metadata)
        return FusedExpertsResult(routed, dispatched.group_list)

    @property
    def carries_adapters(self) -> bool:
        """Whether rows take their adapters along to their experts."""
        return True

    @abstractmethod
    def _prepare_finalize(self, sequence_parallel: bool) -> PrepareAndFinalize: ...

    @abstractmethod
    def _dispatcher(self) -> MoETokenDispatcher: ...

    def _require_expert_parallel(self) -> None:
        if not self.groups.expert_parallel:
            raise InvalidInputError(
                f"communication {self.kind.value!r} with experts on one rank",
                "it sends rows to the ranks of experts",
                "Use 'all_gather', or spread the experts.",
            )


class AllGatherCommImpl(MoECommMethod):
    """All tokens go everywhere, by all-gather; outputs are summed by reduce-scatter.

    The only way for experts of which each rank has a slice. Static shapes, so a captured graph can
    contain it; costs memory and bandwidth in proportion to the tokens of all ranks.
    """

    kind = MoECommType.ALLGATHER

    def _prepare_finalize(self, sequence_parallel: bool) -> PrepareAndFinalize:
        return PrepareAndFinalizeWithAllGather(self.groups, sequence_parallel=sequence_parallel)

    def _dispatcher(self) -> MoETokenDispatcher:
        ep = self.groups.ep
        return TokenDispatcherWithAllGather(
            ep.rank_in_group, self.partition.capacity, ep.world_size
        )


class AlltoAllCommImpl(MoECommMethod):
    """Rows go to the ranks of their experts and back, by all-to-all of uneven parts.

    For many tokens, as in prefill. The host waits for the numbers of rows, so no captured graph
    can contain it.
    """

    kind = MoECommType.ALLTOALL

    def _prepare_finalize(self, sequence_parallel: bool) -> PrepareAndFinalize:
        self._require_expert_parallel()
        return PrepareAndFinalizeWithAll2All(self.groups, sequence_parallel=sequence_parallel)

    def _dispatcher(self) -> MoETokenDispatcher:
        return TokenDispatcherWithAll2AllV(self.groups.ep, self.partition.capacity)


class MC2CommImpl(MoECommMethod):
    """Rows go to the ranks of their experts and back by one operator each.

    For few tokens, as in decode, on A2 and A3. Static shapes, so a captured graph can contain it.
    """

    kind = MoECommType.MC2

    @property
    def carries_adapters(self) -> bool:
        """No: the operators send rows and nothing else."""
        return False

    def _prepare_finalize(self, sequence_parallel: bool) -> PrepareAndFinalize:
        self._require_expert_parallel()
        return PrepareAndFinalizeWithMC2(self.groups, sequence_parallel=sequence_parallel)

    def _dispatcher(self) -> MoETokenDispatcher:
        return TokenDispatcherWithMC2(self.groups.ep, self.partition.capacity)


class FusedMC2Operator(Protocol):
    """Dispatch, experts and combine in one operator, such as CANN's mega MoE."""

    def __call__(self, given: MoETokenDispatchInput, mlp: ExpertsMlp) -> FusedExpertsResult:
        """The weighted sums for rows of which every rank has the same number."""


class FusedMC2CommImpl(MC2CommImpl):
    """MC2 with the experts inside the operator.

    No public torch_npu up to 2.14 has such an operator, so the one to use must be given.

    Args:
        groups: the layer's ranks.
        partition: which rank holds which expert.
        sequence_parallel: see :class:`PrepareAndFinalize`.
        operator: the operator, or None where there is none.

    Raises:
        InvalidInputError: no operator.
    """

    kind = MoECommType.FUSED_MC2

    def __init__(
        self,
        groups: ParallelGroups,
        partition: ExpertPartition,
        *,
        sequence_parallel: bool = False,
        operator: FusedMC2Operator | None = None,
    ) -> None:
        if operator is None:
            raise InvalidInputError(
                "communication 'fused_mc2'",
                "torch_npu has no operator that fuses dispatch, experts and combine",
                "Use 'mc2', or pass an operator such as CANN's mega MoE.",
            )
        super().__init__(groups, partition, sequence_parallel=sequence_parallel)
        self.operator = operator

    def fused_experts(
        self,
        given: MoETokenDispatchInput,
        mlp: ExpertsMlp,
        lora: MoELoRAContext | None = None,
    ) -> FusedExpertsResult:
        """See :meth:`MoECommMethod.fused_experts`."""
        return self.operator(given, mlp)
