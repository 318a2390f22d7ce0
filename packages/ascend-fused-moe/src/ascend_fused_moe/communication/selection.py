"""Which way of communication a step takes, decided from data that every rank has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.support import SUPPORTED, Support, refuse

from ascend_fused_moe.communication.methods import (
    AllGatherCommImpl,
    AlltoAllCommImpl,
    FusedMC2CommImpl,
    FusedMC2Operator,
    MC2CommImpl,
    MoECommMethod,
    MoECommType,
)
from ascend_fused_moe.dispatchers.npu import supports_mc2
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.groups import ParallelGroups

__all__ = ["CommChoice", "CommLayer", "MoECommMethods", "select_moe_comm_method"]

_ORDER = (MoECommType.FUSED_MC2, MoECommType.MC2, MoECommType.ALLTOALL, MoECommType.ALLGATHER)

_CLASSES: dict[MoECommType, type[MoECommMethod]] = {
    one.kind: one for one in (AllGatherCommImpl, AlltoAllCommImpl, MC2CommImpl)
}


@dataclass(frozen=True)
class CommLayer:
    """What the choice needs to know of a layer.

    Attributes:
        hidden: ``H``.
        top_k: experts of a token.
        experts: number of experts.
        dtype: of the tokens.
        ranks: that hold the experts; 1 where each holds a slice of all.
        sharing: ranks that share a data-parallel part's tokens.
        facts: of the device; None on a CPU.
        fused_operator: whether there is an operator for ``fused_mc2``.
        captured: whether steps are parts of captured graphs, for which the host must not wait.
        forced: the way that a configuration asks for, or None.
    """

    hidden: int
    top_k: int
    experts: int
    dtype: torch.dtype
    ranks: int
    sharing: int = 1
    facts: DeviceFacts | None = None
    fused_operator: bool = False
    captured: bool = False
    forced: MoECommType | None = None


@dataclass(frozen=True)
class CommChoice:
    """A choice and its reasons.

    Attributes:
        kind: the way that was chosen.
        refused: those that come before it, each with the reason against it.
    """

    kind: MoECommType
    refused: tuple[tuple[MoECommType, str], ...]


def select_moe_comm_method(layer: CommLayer, tokens: int) -> CommChoice:
    """The first way that a step can take: fused MC2, MC2, all-to-all, all-gather.

    Args:
        layer: the layer; the same on every rank.
        tokens: of the largest data-parallel part in this step, padding included; the same on every
            rank, so that all choose the same.

    Raises:
        InvalidInputError: the way that is forced cannot be taken.
    """
    if layer.forced is not None:
        support = _supports(layer.forced, layer, tokens)
        if not support:
            raise InvalidInputError(
                f"communication {layer.forced.value!r}",
                support.reason,
                "Choose another, or none to let the layer choose.",
            )
        return CommChoice(layer.forced, ())
    refused: list[tuple[MoECommType, str]] = []
    for kind in _ORDER[:-1]:
        support = _supports(kind, layer, tokens)
        if support:
            return CommChoice(kind, tuple(refused))
        refused.append((kind, support.reason))
    return CommChoice(MoECommType.ALLGATHER, tuple(refused))


def _supports(kind: MoECommType, layer: CommLayer, tokens: int) -> Support:
    if kind is MoECommType.ALLGATHER:
        return SUPPORTED
    if layer.ranks == 1:
        return refuse("experts on one rank, it sends rows to the ranks of experts")
    if kind is MoECommType.ALLTOALL:
        if layer.captured:
            return refuse("captured graphs, the host waits for the numbers of rows")
        return SUPPORTED
    if layer.facts is None:
        return refuse("a CPU, its operators exist on NPUs alone")
    if kind is MoECommType.FUSED_MC2 and not layer.fused_operator:
        return refuse("no operator that fuses dispatch, experts and combine")
    return supports_mc2(
        layer.facts,
        ranks=layer.ranks,
        capacity=ExpertPartition(layer.experts, layer.ranks).capacity,
        rows=max(1, -(-tokens // layer.sharing)),
        hidden=layer.hidden,
        top_k=layer.top_k,
        dtype=layer.dtype,
    )


class MoECommMethods:
    """The ways of communication of a layer, made when first chosen.

    Args:
        layer: what the choice needs to know.
        groups: the layer's ranks.
        partition: which rank holds which expert.
        sequence_parallel: the ranks of a part share its tokens.
        operator: for ``fused_mc2``, or None.

    Raises:
        InvalidInputError: ``layer`` describes other ranks or experts, or an operator that is not
            given.
    """

    def __init__(
        self,
        layer: CommLayer,
        groups: ParallelGroups,
        partition: ExpertPartition,
        *,
        sequence_parallel: bool = False,
        operator: FusedMC2Operator | None = None,
    ) -> None:
        described = layer.ranks, layer.sharing, layer.experts
        given = groups.ep.world_size, groups.tp.world_size, partition.experts
        if described != given:
            raise InvalidInputError(
                f"a layer of {described} ranks, sharing ranks and experts",
                f"groups and partition have {given}",
                "Describe the layer that they were made for.",
            )
        if layer.fused_operator != (operator is not None):
            raise InvalidInputError(
                f"fused_operator={layer.fused_operator} with operator={operator!r}",
                "a layer has an operator for 'fused_mc2' exactly where it is given one",
                "Pass the operator, or describe the layer without one.",
            )
        self.layer = layer
        self.groups = groups
        self.partition = partition
        self.sequence_parallel = sequence_parallel
        self.operator = operator
        self._made: dict[MoECommType, MoECommMethod] = {}

    def for_tokens(self, tokens: int) -> MoECommMethod:
        """The way for a step; see :func:`select_moe_comm_method`."""
        kind = select_moe_comm_method(self.layer, tokens).kind
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: MoECommType) -> MoECommMethod:
        if kind is MoECommType.FUSED_MC2:
            return FusedMC2CommImpl(
                self.groups,
                self.partition,
                sequence_parallel=self.sequence_parallel,
                operator=self.operator,
            )
        return _CLASSES[kind](self.groups, self.partition, sequence_parallel=self.sequence_parallel)
