"""Any number of ranks in one process: a thread for each, collectives through shared memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_PATIENCE_S = 60.0


class _Shared:
    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=_PATIENCE_S)
        self.values: list[Any] = [None] * ranks


class SimulatedGroup:
    """One rank's view of the group; has the calls of vLLM's ``GroupCoordinator`` that we use.

    Attributes:
        rank_in_group: this rank's place.
        world_size: number of ranks.
        name: of no communicator.
        calls: names of the collectives that this rank took part in.
    """

    name = ""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank_in_group = rank
        self.world_size = len(shared.values)
        self.calls: list[str] = []
        self._shared = shared

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, added in their order."""
        values = self._exchanged("all_reduce", input_)
        return torch.stack(values).sum(0).to(input_.dtype)

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors side by side along ``dim``."""
        return torch.cat(self._exchanged("all_gather", input_), dim)

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part along ``dim`` of the sum over the ranks."""
        values = self._exchanged("reduce_scatter", input_)
        total = torch.stack(values).sum(0).to(input_.dtype)
        assert total.shape[dim] % self.world_size == 0, "parts of unequal size"
        return total.chunk(self.world_size, dim)[self.rank_in_group].contiguous()

    def all_to_all_parts(self, parts: torch.Tensor) -> torch.Tensor:
        """Part ``j`` goes to rank ``j``."""
        values = self._exchanged("all_to_all", parts)
        return torch.stack([value[self.rank_in_group] for value in values])

    def all_to_all_rows(
        self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        """The next ``send[j]`` rows go to rank ``j``; ``receive`` says how many come from each."""
        sent = [one.tolist() for one in self._exchanged("all_to_all_rows", torch.tensor(send))]
        longest = max(map(sum, sent))
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        here = self.rank_in_group
        shown = self._exchanged("all_to_all_rows", padded)
        parts = [x[: sum(n)].split(n)[here] for x, n in zip(shown, sent, strict=True)]
        assert [len(part) for part in parts] == list(receive), "other rows than were announced"
        return torch.cat(parts)

    def _exchanged(self, name: str, value: torch.Tensor) -> list[torch.Tensor]:
        self.calls.append(name)
        shared = self._shared
        shared.values[self.rank_in_group] = (name, value.clone())
        shared.barrier.wait()
        found = list(shared.values)
        shared.barrier.wait()
        names = {one for one, _ in found}
        assert len(names) == 1, f"the ranks are in different collectives: {names}"
        shapes = {tuple(tensor.shape) for _, tensor in found}
        assert len(shapes) == 1, f"{name} of shapes {shapes}"
        return [tensor for _, tensor in found]


def on_ranks(ranks: int, function: Callable[[SimulatedGroup], T]) -> list[T]:
    """Run ``function`` once for each rank of a group, all at the same time.

    Args:
        ranks: number of ranks.
        function: takes its rank's group.

    Returns:
        The results by rank.
    """
    shared = _Shared(ranks)
    return _run(ranks, [shared], lambda rank: function(SimulatedGroup(rank, shared)))


def on_grid(
    rows: int, columns: int, function: Callable[[SimulatedGroup, SimulatedGroup, SimulatedGroup], T]
) -> list[T]:
    """Run ``function`` once for each rank of a grid, all at the same time.

    Args:
        rows: number of rows.
        columns: ranks of a row.
        function: takes its rank's group along the row, along the column, and of all ranks.

    Returns:
        The results by rank, row by row.
    """
    along, across = [_Shared(columns) for _ in range(rows)], [_Shared(rows) for _ in range(columns)]
    everyone = _Shared(rows * columns)

    def one(rank: int) -> T:
        row, column = divmod(rank, columns)
        return function(
            SimulatedGroup(column, along[row]),
            SimulatedGroup(row, across[column]),
            SimulatedGroup(rank, everyone),
        )

    return _run(rows * columns, [*along, *across, everyone], one)


def _run(ranks: int, groups: list[_Shared], function: Callable[[int], T]) -> list[T]:
    def one(rank: int) -> T:
        try:
            with torch.inference_mode():
                return function(rank)
        except BaseException:
            for shared in groups:
                shared.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(one, rank) for rank in range(ranks)]
        errors = [future.exception() for future in futures]
        first = [e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)]
        if first:
            raise first[0]
        return [future.result() for future in futures]
