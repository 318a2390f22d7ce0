"""Which place holds which expert, and the maps that follow from it.

A *place* is room for one expert on one rank; its number, ``rank * capacity + place on the rank``,
is the physical id. A *logical* expert is one of the model's; it may have replicas in several
places. Every rank has the same number of places, whatever the number of experts, because grouped
operators and MC2 want that; a place that holds none has -1 and is never routed to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from ascend_ops_core.checks import require_at_least
from ascend_ops_core.errors import InvalidInputError

__all__ = ["EplbPlacementConfig", "ExpertPlacement", "initial_placement", "placement_problems"]

EMPTY = -1


@dataclass(frozen=True)
class ExpertPlacement:
    """The expert in each place, checked.

    Attributes:
        physical_to_logical: the logical expert of each place, -1 for none.
        experts: number of logical experts.
        ranks: number of ranks.

    Raises:
        InvalidInputError: anything that :func:`placement_problems` finds; all of it is named.
    """

    physical_to_logical: tuple[int, ...]
    experts: int
    ranks: int

    def __post_init__(self) -> None:
        problems = placement_problems(self.physical_to_logical, self.experts, self.ranks)
        if problems:
            raise InvalidInputError(
                f"a placement of {len(self.physical_to_logical)} places",
                "; ".join(problems),
                "Nothing was changed. Correct the table, or let it be computed.",
            )

    @property
    def places(self) -> int:
        """Places of all ranks; physical ids lie below."""
        return len(self.physical_to_logical)

    @property
    def capacity(self) -> int:
        """Places of a rank."""
        return self.places // self.ranks

    @cached_property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """The places of each logical expert, ascending."""
        found: list[list[int]] = [[] for _ in range(self.experts)]
        for place, expert in enumerate(self.physical_to_logical):
            if expert != EMPTY:
                found[expert].append(place)
        return tuple(tuple(places) for places in found)

    @property
    def most_replicas(self) -> int:
        """Replicas of the expert that has most."""
        return max(len(places) for places in self.replicas)

    def on_rank(self, rank: int) -> tuple[int, ...]:
        """The logical experts of a rank's places."""
        return self.physical_to_logical[rank * self.capacity : (rank + 1) * self.capacity]

    def replica_counts(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """``[experts]`` int32: replicas of each expert."""
        counts = [len(places) for places in self.replicas]
        return torch.tensor(counts, dtype=torch.int32, device=device)

    def logical_to_physical(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """``[experts, most replicas]`` int32: the places of each expert, -1 behind the last."""
        width = self.most_replicas
        rows = [[*places, *[EMPTY] * (width - len(places))] for places in self.replicas]
        return torch.tensor(rows, dtype=torch.int32, device=device)

    def expert_map(self, rank: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """``[experts]`` int32: the place on ``rank`` of each expert, -1 where it has none there."""
        local = torch.full((self.experts,), EMPTY, dtype=torch.int32)
        for place, expert in reversed(list(enumerate(self.on_rank(rank)))):
            if expert != EMPTY:
                local[expert] = place
        return local.to(device)

    def rank_loads(self, load: Sequence[float]) -> list[float]:
        """The load of each rank if replicas share that of their expert equally.

        Args:
            load: of each logical expert.
        """
        shares = [one / len(places) for one, places in zip(load, self.replicas, strict=True)]
        return [sum(shares[e] for e in self.on_rank(r) if e != EMPTY) for r in range(self.ranks)]


def placement_problems(table: Sequence[int], experts: int, ranks: int) -> list[str]:
    """Everything that is wrong with a table of places, as clauses; empty if nothing is.

    Args:
        table: the logical expert of each place, -1 for none.
        experts: number of logical experts.
        ranks: number of ranks.
    """
    if experts < 1 or ranks < 1:
        return [f"{experts} experts on {ranks} ranks, both are at least 1"]
    problems = []
    if len(table) % ranks or not table:
        problems.append(f"{len(table)} places do not divide among {ranks} ranks")
    outside = {place: e for place, e in enumerate(table) if not EMPTY <= e < experts}
    if outside:
        named = ", ".join(f"{expert} in place {place}" for place, expert in outside.items())
        problems.append(f"experts lie below {experts}, but for {named}")
    missing = sorted(set(range(experts)) - set(table))
    if missing:
        problems.append(f"no place holds expert {', '.join(map(str, missing))}")
    capacity = len(table) // ranks
    for rank in range(ranks):
        held = [e for e in table[rank * capacity : (rank + 1) * capacity] if e >= 0]
        twice = sorted({e for e in held if held.count(e) > 1})
        if twice:
            problems.append(f"rank {rank} holds expert {', '.join(map(str, twice))} twice")
    return problems


def initial_placement(experts: int, ranks: int, redundant: int = 0) -> ExpertPlacement:
    """Experts in their order, then again from the first for what is redundant.

    Args:
        experts: logical experts.
        ranks: ranks; they need not divide the experts. The first ranks hold one more.
        redundant: replicas besides one of each expert.

    Raises:
        InvalidInputError: no expert or rank, a negative number of replicas, or more of them than
            ranks, each of which holds an expert once, have room for.
    """
    require_at_least("experts", experts, 1)
    require_at_least("ranks", ranks, 1)
    require_at_least("redundant", redundant, 0)
    if experts + redundant > experts * ranks:
        raise InvalidInputError(
            f"{redundant} redundant experts of {experts} on {ranks} ranks",
            f"each rank holds an expert once, so at most {experts * (ranks - 1)} are redundant",
            "Lower num_redundant_experts.",
        )
    total = experts + redundant
    each, more = divmod(total, ranks)
    capacity = -(-total // ranks)
    table: list[int] = []
    first = 0
    for rank in range(ranks):
        count = each + (rank < more)
        held = [(first + i) % experts for i in range(count)]
        table += [*held, *[EMPTY] * (capacity - count)]
        first += count
    return ExpertPlacement(tuple(table), experts, ranks)


@dataclass(frozen=True)
class EplbPlacementConfig:
    """What decides where the experts of a layer lie.

    Attributes:
        experts: logical experts.
        ranks: ranks of the expert-parallel group.
        redundant: replicas besides one of each expert.
        tables: by layer, a placement computed beforehand; other layers start with
            :func:`initial_placement`.
    """

    experts: int
    ranks: int
    redundant: int = 0
    tables: Mapping[int, ExpertPlacement] | None = None

    def placement(self, layer: int) -> ExpertPlacement:
        """Where the experts of a layer lie at the start."""
        given = (self.tables or {}).get(layer)
        return given or initial_placement(self.experts, self.ranks, self.redundant)

    @classmethod
    def from_expert_map(
        cls, content: Mapping[str, Any], experts: int, ranks: int
    ) -> EplbPlacementConfig:
        """Read a static expert map as vllm-ascend's tools write it.

        Args:
            content: the parsed JSON: ``layer_list`` of ``layer_id`` and ``device_list``, whose
                entries have ``device_id`` and ``device_expert``.
            experts: logical experts of the model.
            ranks: ranks of the expert-parallel group.

        Raises:
            InvalidInputError: a part that is absent, devices that are not the ranks, rows of
                different lengths, or placements that are wrong; every problem is named.
        """
        problems: list[str] = []
        tables: dict[int, ExpertPlacement] = {}
        for entry in content.get("layer_list") or []:
            layer = entry.get("layer_id")
            rows = {
                d.get("device_id"): d.get("device_expert") for d in entry.get("device_list", [])
            }
            if not isinstance(layer, int) or sorted(rows, key=str) != sorted(range(ranks), key=str):
                problems.append(f"layer {layer}: devices {list(rows)} are not 0 to {ranks - 1}")
                continue
            sizes = {len(row) if isinstance(row, list) else None for row in rows.values()}
            if len(sizes) != 1 or None in sizes:
                problems.append(f"layer {layer}: devices hold different numbers of experts")
                continue
            table = tuple(expert for rank in range(ranks) for expert in rows[rank])
            found = placement_problems(table, experts, ranks)
            problems += [f"layer {layer}: {one}" for one in found]
            if not found:
                tables[layer] = ExpertPlacement(table, experts, ranks)
        if not content.get("layer_list"):
            problems.append("there is no layer_list")
        if len({one.places for one in tables.values()}) > 1:
            problems.append("layers have different numbers of places")
        if problems:
            raise InvalidInputError(
                "the expert map", "; ".join(problems), "Write it again for this model and group."
            )
        places = next(iter(tables.values())).places
        return cls(experts, ranks, places - experts, tables)
