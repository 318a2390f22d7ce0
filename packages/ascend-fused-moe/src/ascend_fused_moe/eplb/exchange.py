"""How ranks agree on a rebalance and send each other weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import distributed

__all__ = ["AloneExchange", "Exchange", "Parcel", "ProcessExchange", "swap_parcels"]

Parcel = tuple[int, torch.Tensor]
"""The other rank, and a contiguous tensor to send or to fill."""


class Exchange(Protocol):
    """What a rebalance asks of the ranks of an expert-parallel group."""

    @property
    def rank(self) -> int:
        """This rank's place in the group."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""

    def said(self, words: str) -> list[str]:
        """What each rank says, in their order; every rank must ask at the same time."""

    def swap(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Send and fill; between two ranks, parcels arrive in the order in which they are sent."""


class AloneExchange:
    """A group of one rank."""

    rank, ranks = 0, 1

    def said(self, words: str) -> list[str]:
        """See :class:`Exchange`."""
        return [words]

    def swap(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """See :class:`Exchange`."""
        assert not sends
        assert not receives


class ProcessExchange:
    """Ranks that are processes of torch.distributed.

    Args:
        group: carries weights, on their device.
        control: carries words, on CPUs; the same as ``group`` where that is gloo.
    """

    def __init__(
        self,
        group: distributed.ProcessGroup,
        control: distributed.ProcessGroup | None = None,
    ) -> None:
        self._group = group
        self._control = control or group
        self.rank = distributed.get_rank(group)
        self.ranks = distributed.get_world_size(group)

    def said(self, words: str) -> list[str]:
        """See :class:`Exchange`."""
        heard: list[str] = [""] * self.ranks
        distributed.all_gather_object(heard, words, group=self._control)
        return heard

    def swap(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """See :class:`Exchange`."""
        swap_parcels(self._group, sends, receives)


def swap_parcels(
    group: distributed.ProcessGroup, sends: Sequence[Parcel], receives: Sequence[Parcel]
) -> None:
    """:meth:`Exchange.swap` over a group of torch.distributed."""
    calls = [
        distributed.P2POp(call, _bytes(tensor), group=group, group_peer=rank)
        for call, parcels in ((distributed.isend, sends), (distributed.irecv, receives))
        for rank, tensor in parcels
    ]
    if calls:
        for work in distributed.batch_isend_irecv(calls):
            work.wait()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without a dtype, since not every transport knows 8-bit floats."""
    return tensor.reshape(-1).view(torch.uint8)
