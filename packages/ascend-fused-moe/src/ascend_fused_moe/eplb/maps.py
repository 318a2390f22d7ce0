"""The maps of one layer on its device, which change together and never move."""

from __future__ import annotations

from collections.abc import Callable

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.eplb.placement import EMPTY, ExpertPlacement
from ascend_fused_moe.eplb.routing_table import build_expert_replica_routing_table, routing_period
from ascend_fused_moe.ops.expert_maps import map_to_physical_and_record

__all__ = ["EplbLayerMaps"]

_USUAL = 4  # replicas, which make tables of 12 columns


class EplbLayerMaps:
    """Where a layer's experts lie, as tensors that a captured graph may hold.

    Args:
        placement: at the start.
        rank: this rank.
        max_replicas: most replicas that an expert may ever have; None for what it has now, or 4,
            or one for each of fewer ranks. It decides the size of the tables.
        device: of the tensors.

    Attributes:
        placement: the present one.
        rank: this rank.
        max_replicas: see above.
        routing_table: ``[experts, period]`` int32: the place that token ``t`` takes, in column
            ``t % period``.
        expert_map: ``[experts]`` int32: the place on this rank of each expert, or -1.
        log2phy: ``[experts, max_replicas]`` int32: the places of each expert, -1 behind the last.
        replica_counts: ``[experts]`` int32.
        phy2log: ``[places]`` int32: the expert of each place, or -1.

    Raises:
        InvalidInputError: a rank that is none, or a placement with more replicas than allowed.
    """

    def __init__(
        self,
        placement: ExpertPlacement,
        rank: int,
        max_replicas: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0 <= rank < placement.ranks:
            raise InvalidInputError(
                f"rank {rank}", f"the placement has {placement.ranks} ranks", "Pass the EP rank."
            )
        self.placement = placement
        self.rank = rank
        self.max_replicas = max_replicas or max(
            placement.most_replicas, min(placement.ranks, _USUAL)
        )
        if placement.most_replicas > self.max_replicas:
            raise InvalidInputError(
                f"{placement.most_replicas} replicas of an expert",
                f"max_replicas is {self.max_replicas}",
                "Allow more, or place fewer.",
            )
        for name, value in self._tables(placement).items():
            setattr(self, name, value.to(device))

    routing_table: torch.Tensor
    expert_map: torch.Tensor
    log2phy: torch.Tensor
    replica_counts: torch.Tensor
    phy2log: torch.Tensor

    def to_physical(
        self,
        ids: torch.Tensor,
        load: torch.Tensor | None = None,
        num_unpadded_tokens: torch.Tensor | None = None,
        *,
        offset: int = 0,
    ) -> torch.Tensor:
        """The places that tokens take.

        Args:
            ids: ``[T, k]``.
            load: see :func:`ascend_fused_moe.ops.expert_maps.map_to_physical_and_record`.
            num_unpadded_tokens: see there.
            offset: where in the period the first token stands. Ranks that route the same tokens,
                as behind an all-gather, must pass the same; ranks with tokens of their own share
                replicas better with their rank.
        """
        return map_to_physical_and_record(
            ids, self.routing_table, load, num_unpadded_tokens, offset=offset
        )

    def apply(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace every map by what ``move`` makes of it, as a module does when it moves."""
        for name in self._tables(self.placement):
            setattr(self, name, move(getattr(self, name)))

    @property
    def nbytes(self) -> int:
        """Bytes of all maps."""
        return sum(int(getattr(self, name).nbytes) for name in self._tables(self.placement))

    def problems_with(self, placement: ExpertPlacement) -> list[str]:
        """Why a placement cannot take the place of the present one; empty if it can."""
        old, problems = self.placement, []
        for what in ("experts", "ranks", "places"):
            has, given = getattr(old, what), getattr(placement, what)
            if has != given:
                problems.append(f"it has {given} {what}, the layer {has}")
        if not problems and placement.most_replicas > self.max_replicas:
            problems.append(
                f"an expert has {placement.most_replicas} replicas, at most {self.max_replicas} fit"
            )
        return problems

    def put_back(self) -> Callable[[], None]:
        """A function that makes the maps what they are now."""
        before = self.placement
        return lambda: self.replace(before)

    def replace(self, placement: ExpertPlacement) -> None:
        """Overwrite all maps where they lie."""
        # All are made before the first is overwritten.
        for name, value in self._tables(placement).items():
            getattr(self, name).copy_(value)
        self.placement = placement

    def _tables(self, placement: ExpertPlacement) -> dict[str, torch.Tensor]:
        period = routing_period(self.max_replicas)
        # Whatever the default device is: they are filled value by value.
        with torch.device("cpu"):
            log2phy = torch.full((placement.experts, self.max_replicas), EMPTY, dtype=torch.int32)
            log2phy[:, : placement.most_replicas] = placement.logical_to_physical()
            return {
                "routing_table": build_expert_replica_routing_table(placement, period),
                "expert_map": placement.expert_map(self.rank),
                "log2phy": log2phy,
                "replica_counts": placement.replica_counts(),
                "phy2log": torch.tensor(placement.physical_to_logical, dtype=torch.int32),
            }
