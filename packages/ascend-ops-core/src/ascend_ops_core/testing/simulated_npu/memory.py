"""Bytes alive on each simulated device.

An allocation is a piece of host memory that npu tensors lie over; it ends when the storages of all
of them are gone. That is found out by looking: always before a figure is given, and before a new
allocation would set a new peak, so that every figure is exact.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

import torch

_LOOK_AGAIN = 64

_storage: Any = torch.UntypedStorage
_expired, _forget = _storage._expired, _storage._free_weak_ref


@dataclass
class DeviceMemory:
    """Figures of one device, in bytes unless said otherwise.

    Attributes:
        total: memory of the device.
        allocated: alive now.
        peak: largest ``allocated`` since the last reset.
        reserved: what a caching allocator would hold: the largest ``allocated`` since the cache
            was emptied.
        peak_reserved: largest ``reserved`` since the last reset.
        allocations: number made so far.
        frees: number that ended.
        refused: number refused because the device would have been over-full.
    """

    total: int = 0
    allocated: int = 0
    peak: int = 0
    reserved: int = 0
    peak_reserved: int = 0
    allocations: int = 0
    frees: int = 0
    refused: int = 0

    def add(self, size: int) -> None:
        """Count an allocation of ``size`` bytes."""
        self.allocations += 1
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def remove(self, size: int) -> None:
        """Count the end of an allocation of ``size`` bytes."""
        self.frees += 1
        self.allocated -= size


class Holder:
    """A storage over an allocation, which it does not keep alive."""

    __slots__ = ("reference",)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.reference = storage._weak_ref()

    def __del__(self) -> None:
        _forget(self.reference)


@dataclass
class Allocation:
    """A piece of memory; ``start`` is its address."""

    start: int
    size: int
    device: int
    holders: list[Holder] = field(default_factory=list)

    def ended(self) -> bool:
        """Whether no npu tensor lies over it any more."""
        # Views come and go by the thousand, so those that are gone are not looked at again.
        while self.holders and _expired(self.holders[-1].reference):
            self.holders.pop()
        return not self.holders


@dataclass
class Memory:
    """The allocations of all devices."""

    devices: list[DeviceMemory] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _allocations: dict[int, Allocation] = field(default_factory=dict)
    _look_at: int = _LOOK_AGAIN

    def set_up(self, count: int, total: int) -> None:
        """Make ``count`` devices of ``total`` bytes."""
        self.devices = [DeviceMemory(total) for _ in range(count)]

    def take(self, alias: torch.Tensor, source: torch.Tensor, device: int) -> None:
        """Count the npu tensor ``alias`` over the memory of the CPU tensor ``source``.

        The whole storage of ``source`` is the allocation, unless its memory belongs to one already.
        """
        if alias.numel() == 0:
            return
        allocation = self._containing(alias.data_ptr())
        if allocation is None:
            storage = source.untyped_storage()
            allocation = self._new(storage.data_ptr(), storage.nbytes(), device)
        allocation.holders.append(Holder(alias.untyped_storage()))

    def of(self, device: int) -> DeviceMemory:
        """Return the figures of a device as of now."""
        self._look()
        return self.devices[device]

    def at(self, address: int) -> Allocation | None:
        """Return the allocation that holds an address, None if none does."""
        return self._containing(address)

    def _new(self, start: int, size: int, device: int) -> Allocation:
        here = self.devices[device]
        if here.allocated + size > here.peak or len(self._starts) > self._look_at:
            self._look()
        if here.allocated + size > here.total:
            here.refused += 1
            raise torch.OutOfMemoryError(
                f"simulated npu:{device} has {here.total} bytes, {here.allocated} are in use, and "
                f"{size} more were asked for"
            )
        # What began here is gone. Left standing, it would hide this allocation from a search.
        first, behind = (bisect.bisect_left(self._starts, one) for one in (start, start + size))
        for inside in self._starts[first:behind]:
            if inside == start or self._allocations[inside].ended():
                self._end(self._allocations[inside])
        allocation = self._allocations[start] = Allocation(start, size, device)
        bisect.insort(self._starts, start)
        here.add(size)
        return allocation

    def _containing(self, address: int) -> Allocation | None:
        while place := bisect.bisect_right(self._starts, address):
            found = self._allocations[self._starts[place - 1]]
            if address >= found.start + found.size:
                return None
            if not found.ended():
                return found
            self._end(found)
        return None

    def _look(self) -> None:
        """End what is gone."""
        for allocation in list(self._allocations.values()):
            if allocation.ended():
                self._end(allocation)
        self._look_at = 2 * len(self._starts) + _LOOK_AGAIN

    def _end(self, allocation: Allocation) -> None:
        del self._allocations[allocation.start]
        del self._starts[bisect.bisect_left(self._starts, allocation.start)]
        self.devices[allocation.device].remove(allocation.size)


MEMORY = Memory()
"""The memory of this process's devices."""
