"""Where experts should lie for a given load."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.eplb.placement import EMPTY, ExpertPlacement

__all__ = ["RebalancePlan", "imbalance", "plan_rebalance"]


@dataclass(frozen=True)
class RebalancePlan:
    """A placement and what it is good for.

    Attributes:
        placement: the new one.
        before: the load of the busiest rank over the mean, as it is.
        after: the same with the new placement; 1 is even.
        moved: places that will hold another expert.
    """

    placement: ExpertPlacement
    before: float
    after: float
    moved: int


def imbalance(placement: ExpertPlacement, load: Sequence[float]) -> float:
    """The load of the busiest rank over the mean of the ranks; 1 where there is no load."""
    loads = placement.rank_loads(load)
    mean = sum(loads) / len(loads)
    return max(loads) / mean if mean > 0 else 1.0


def plan_rebalance(
    current: ExpertPlacement, load: Sequence[float], max_replicas: int | None = None
) -> RebalancePlan:
    """Spread the load over the same places, replacing few experts.

    Replicas go one by one to the expert whose replicas have most to do; then the heaviest replica
    goes to the rank with least to do that has room and does not hold its expert. Ranks keep what
    they can in place. If that is no better than ``current``, ``current`` stays.

    Args:
        current: where experts lie; as many places will be filled as are now.
        load: of each logical expert, at least 0.
        max_replicas: most replicas of an expert, at most one for each rank; None for that.

    Raises:
        InvalidInputError: another number of loads, one that is negative or not finite, or fewer
            replicas than are needed to fill the places.
    """
    load = [float(one) for one in load]
    if len(load) != current.experts or not all(0 <= one < float("inf") for one in load):
        raise InvalidInputError(
            f"loads of {len(load)} experts",
            f"there is one for each of {current.experts}, finite and at least 0",
            "Add the replicas of each expert with ExpertLoadWindow.of_experts.",
        )
    most = current.ranks if max_replicas is None else min(max_replicas, current.ranks)
    filled = sum(len(places) for places in current.replicas)
    if filled > most * current.experts:
        raise InvalidInputError(
            f"max_replicas={max_replicas}",
            f"{filled} places are filled by {current.experts} experts",
            "Allow more replicas, or start with fewer redundant experts.",
        )
    counts = _replicas(load, filled, most)
    ranks = _packed(load, counts, current)
    placement = current
    if ranks is not None:
        placement = ExpertPlacement(_settled(ranks, current), current.experts, current.ranks)
    before, after = imbalance(current, load), imbalance(placement, load)
    if after >= before:
        placement, after = current, before
    pairs = zip(placement.physical_to_logical, current.physical_to_logical, strict=True)
    return RebalancePlan(placement, before, after, sum(new != old for new, old in pairs))


def _replicas(load: list[float], filled: int, most: int) -> list[int]:
    """Replicas of each expert."""
    counts = [1] * len(load)
    heap = [(-one, expert) for expert, one in enumerate(load) if most > 1]
    heapq.heapify(heap)
    for _ in range(filled - len(load)):
        _, expert = heapq.heappop(heap)
        counts[expert] += 1
        if counts[expert] < most:
            heapq.heappush(heap, (-load[expert] / counts[expert], expert))
    return counts


def _packed(
    load: list[float], counts: list[int], current: ExpertPlacement
) -> list[set[int]] | None:
    """The experts of each rank; None if a replica finds room only beside one of its expert."""
    room = [sum(e != EMPTY for e in current.on_rank(rank)) for rank in range(current.ranks)]
    held: list[set[int]] = [set() for _ in room]
    work = [0.0] * current.ranks
    # Of equal loads, experts with many replicas first: they have the fewest ranks to choose from.
    order = sorted(range(len(load)), key=lambda e: (-load[e] / counts[e], -counts[e], e))
    for expert in order:
        for _ in range(counts[expert]):
            free = [r for r, one in enumerate(held) if len(one) < room[r] and expert not in one]
            if not free:
                return None
            rank = min(free, key=lambda r: (work[r], expert not in current.on_rank(r), r))
            held[rank].add(expert)
            work[rank] += load[expert] / counts[expert]
    return held


def _settled(held: list[set[int]], current: ExpertPlacement) -> tuple[int, ...]:
    """Lay each rank's experts out, those that were there before in the places they had."""
    table: list[int] = []
    for rank, experts in enumerate(held):
        before = current.on_rank(rank)
        coming = iter(sorted(experts - set(before)))
        for expert in before:
            table.append(expert if expert in experts or expert == EMPTY else next(coming))
    return tuple(table)
