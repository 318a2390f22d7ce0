"""Which replica the tokens take, in turns."""

from __future__ import annotations

import math

import torch
from ascend_ops_core.checks import require_at_least
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.eplb.placement import ExpertPlacement

__all__ = ["build_expert_replica_routing_table", "routing_period"]


def routing_period(most_replicas: int) -> int:
    """The shortest period in which every number of replicas up to this one comes out even.

    Raises:
        InvalidInputError: fewer than 1.
    """
    require_at_least("most_replicas", most_replicas, 1)
    return math.lcm(*range(1, most_replicas + 1))


def build_expert_replica_routing_table(
    placement: ExpertPlacement, period: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """The place that token ``t`` takes for each expert: column ``t % period``.

    The replicas of an expert follow each other, so that each of ``n`` gets every ``n``-th token. An
    expert's first replica moves on with its number, so that experts do not prefer the same ranks.

    Args:
        placement: where the replicas are.
        period: columns; a multiple of every number of replicas, see :func:`routing_period`. It
            stays the same as replicas come and go, since graphs keep the table's address.
        device: of the table.

    Returns:
        ``[experts, period]`` int32, for
        :func:`ascend_fused_moe.ops.expert_maps.map_to_physical_and_record`.

    Raises:
        InvalidInputError: a period in which some expert's replicas do not come out even.
    """
    require_at_least("period", period, 1)
    uneven = [e for e, places in enumerate(placement.replicas) if period % len(places)]
    if uneven:
        most = placement.most_replicas
        raise InvalidInputError(
            f"a period of {period} for experts {uneven}",
            f"the number of their replicas (up to {most}) does not divide it",
            f"Allow fewer replicas, or take a period of {routing_period(most)}.",
        )
    rows = [
        [places[(token + expert) % len(places)] for token in range(period)]
        for expert, places in enumerate(placement.replicas)
    ]
    return torch.tensor(rows, dtype=torch.int32, device=device)
