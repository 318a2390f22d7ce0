"""A rebalance that changes a layer's maps and weights together, or neither."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.eplb.exchange import Exchange, Parcel
from ascend_fused_moe.eplb.maps import EplbLayerMaps
from ascend_fused_moe.eplb.placement import EMPTY, ExpertPlacement, placement_problems
from ascend_fused_moe.eplb.weights import EplbExpertTensorList

__all__ = ["EplbLayer", "RebalanceError", "rebalance_layer"]


class RebalanceError(RuntimeError):
    """A rebalance that failed on some rank and was taken back on all; nothing has changed."""


@dataclass
class EplbLayer:
    """What a rebalance changes.

    Attributes:
        maps: the layer's maps on this rank.
        weights: every weight of its experts, scales and biases too, by name.

    Raises:
        InvalidInputError: no weights, or other numbers of places than the maps have.
    """

    maps: EplbLayerMaps
    weights: Mapping[str, EplbExpertTensorList]

    def __post_init__(self) -> None:
        capacity = self.maps.placement.capacity
        wrong = [name for name, one in self.weights.items() if len(one) != capacity]
        if wrong or not self.weights:
            raise InvalidInputError(
                f"weights {wrong or 'of no kind'}",
                f"the placement has {capacity} places on each rank",
                "Pass the weights of the same layer and rank.",
            )


@dataclass(frozen=True)
class _Move:
    """A place of this rank that gets another expert."""

    place: int
    source_rank: int
    source_place: int


def rebalance_layer(
    layer: EplbLayer, table: ExpertPlacement | Sequence[int], exchange: Exchange
) -> int:
    """Give places other experts; all ranks call it with the same table.

    First the ranks agree that they mean the same and can do it; then they bring the weights that
    come into memory of their own; then they overwrite weights and maps where they lie, keeping what
    was there; last they agree that all went well, or put everything back, also where a rank has
    died meanwhile. Each step's failure on one rank is known to all, but for one between two ranks
    in the midst of a transfer, which ends with the group's error or time-out before anything was
    overwritten. It takes memory for the weights that
    come to this rank, twice: as they are to be, and as they were.

    Args:
        layer: what changes.
        table: the new placement, or the logical expert of each place.
        exchange: the ranks.

    Returns:
        Places of this rank that were overwritten.

    Raises:
        InvalidInputError: a table that is wrong, each problem named, or for other experts, ranks or
            places, or with more replicas than the maps have room for, on any rank; or ranks that
            were given different tables. Nothing has changed.
        RebalanceError: a rank failed. Nothing has changed, byte for byte.
    """
    placement = _agreed(layer, table, exchange)
    moves = _moves(layer.maps.placement, placement, exchange.rank)
    coming = _fetched(layer, placement, moves, exchange)
    undo: list[Callable[[], None]] = []
    problem = ""
    try:
        for name, weights in layer.weights.items():
            for move, value in zip(moves, coming[name], strict=True):
                undo.append(_restoring(weights, move.place))
                weights.store(move.place, value)
        undo.append(layer.maps.put_back())
        layer.maps.replace(placement)
    except Exception as error:
        problem = _told(exchange.rank, error)
    failed = _failures(problem, exchange)
    if failed:
        for put_back in reversed(undo):
            put_back()
        raise RebalanceError("; ".join(failed) + ". Maps and weights are as they were.")
    return len(moves)


def _told(rank: int, error: Exception) -> str:
    return f"rank {rank}: {type(error).__name__}: {error}"


def _failures(problem: str, exchange: Exchange) -> list[str]:
    """What went wrong on any rank, also that one cannot be heard any more."""
    try:
        return [words for words in exchange.said(problem) if words]
    except Exception as error:
        return [*filter(None, [problem]), _told(exchange.rank, error)]


def _agreed(
    layer: EplbLayer, table: ExpertPlacement | Sequence[int], exchange: Exchange
) -> ExpertPlacement:
    before = layer.maps.placement
    places = table.physical_to_logical if isinstance(table, ExpertPlacement) else tuple(table)
    experts, ranks = before.experts, before.ranks
    if isinstance(table, ExpertPlacement):
        experts, ranks = table.experts, table.ranks
    problems = placement_problems(places, experts, ranks)
    if not problems:
        placement = ExpertPlacement(places, experts, ranks)
        problems = layer.maps.problems_with(placement)
    if exchange.ranks != before.ranks:
        problems.append(f"the group has {exchange.ranks} ranks, the layer {before.ranks}")
    same = hashlib.sha256(repr((before, places)).encode()).hexdigest()
    heard = exchange.said("; ".join(problems) or same)
    if problems:
        raise InvalidInputError(
            f"a placement of {len(places)} places",
            "; ".join(problems),
            "Nothing was changed. Correct the table, or let it be computed.",
        )
    others = [f"rank {rank} says {words!r}" for rank, words in enumerate(heard) if words != same]
    if others:
        raise InvalidInputError(
            "the placement",
            f"it is not the one of all ranks: {', '.join(others)}",
            "Nothing was changed. Compute the plan from the load of all ranks, on each alike.",
        )
    return placement


def _moves(before: ExpertPlacement, after: ExpertPlacement, rank: int) -> list[_Move]:
    """From where the places of a rank get their experts: itself if it has one, else in turns."""
    moves = []
    for place, (old, new) in enumerate(zip(before.on_rank(rank), after.on_rank(rank), strict=True)):
        if new in (old, EMPTY):
            continue
        sources = before.replicas[new]
        own = [one for one in sources if one // before.capacity == rank]
        source = own[0] if own else sources[rank % len(sources)]
        moves.append(_Move(place, *divmod(source, before.capacity)))
    return moves


def _fetched(
    layer: EplbLayer, placement: ExpertPlacement, moves: Sequence[_Move], exchange: Exchange
) -> dict[str, list[torch.Tensor]]:
    """Copies of the weights that come, for each kind in the order of the moves."""
    before, me = layer.maps.placement, exchange.rank
    going = [
        (rank, move.source_place)
        for rank in range(exchange.ranks)
        if rank != me
        for move in _moves(before, placement, rank)
        if move.source_rank == me
    ]
    problem = ""
    sends: list[Parcel] = []
    receives: list[Parcel] = []
    coming: dict[str, list[torch.Tensor]] = {}
    try:
        for name, weights in layer.weights.items():
            sends += [(rank, weights[place].contiguous()) for rank, place in going]
            coming[name] = [
                weights[move.source_place].clone(memory_format=torch.contiguous_format)
                if move.source_rank == me
                else torch.empty(weights.shape[1:], dtype=weights.dtype, device=weights.device)
                for move in moves
            ]
            receives += [
                (move.source_rank, value)
                for move, value in zip(moves, coming[name], strict=True)
                if move.source_rank != me
            ]
    except Exception as error:
        problem = _told(me, error)
    failed = _failures(problem, exchange)
    if failed:
        raise RebalanceError("; ".join(failed) + ". Maps and weights are as they were.")
    exchange.swap(sends, receives)
    return coming


def _restoring(weights: EplbExpertTensorList, place: int) -> Callable[[], None]:
    part = weights[place]
    kept = part.clone()

    def put_back() -> None:
        part.copy_(kept)

    return put_back
