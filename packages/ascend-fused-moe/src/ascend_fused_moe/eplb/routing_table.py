"""Which replica the tokens take, in turns."""

from __future__ import annotations

import math

import torch
from ascend_ops_core.checks import require_at_least

from ascend_fused_moe.eplb.placement import ExpertPlacement

__all__ = ["build_expert_replica_routing_table", "routing_period"]


_LONGEST = 840  # up to 8 replicas come out even


def routing_period(most_replicas: int) -> int:
    """The shortest period in which every number of replicas up to this one comes out even.

    At most 840, since tables have a column for each token of it.

    Raises:
        InvalidInputError: fewer than 1.
    """
    require_at_least("most_replicas", most_replicas, 1)
    return min(math.lcm(*range(1, most_replicas + 1)), _LONGEST)


def build_expert_replica_routing_table(
    placement: ExpertPlacement, period: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """The place that token ``t`` takes for each expert: column ``t % period``.

    The replicas of an expert follow each other, so that each of ``n`` gets every ``n``-th token; in
    a period that is no multiple of ``n`` some get one token more than others. An expert's first
    replica moves on with its number, so that experts do not prefer the same ranks.

    Args:
        placement: where the replicas are.
        period: columns, see :func:`routing_period`. It stays the same as replicas come and go,
            since graphs keep the table's address.
        device: of the table.

    Returns:
        ``[experts, period]`` int32, for
        :func:`ascend_fused_moe.ops.expert_maps.map_to_physical_and_record`.

    Raises:
        InvalidInputError: a period in which some replica never has its turn.
    """
    require_at_least("period", period, placement.most_replicas)
    rows = [
        [places[(token + expert) % len(places)] for token in range(period)]
        for expert, places in enumerate(placement.replicas)
    ]
    return torch.tensor(rows, dtype=torch.int32, device=device)
