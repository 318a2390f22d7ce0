"""What a program did that costs time on a real device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace


@dataclass
class Counters:
    """Numbers since the device was installed; subtract two snapshots for those of a stretch.

    Attributes:
        device_to_host: copies from a device to the host, ``item()`` and ``tolist()`` included.
        host_to_device: copies from the host to a device.
        synchronisations: times that the host had to wait: blocking copies to the host or from
            pageable memory, synchronize() of a stream, event or device, and operators whose result
            has a size that depends on data (``nonzero``, indexing with a mask).
        allocations: pieces of device memory taken.
        launches: Triton kernels started.
        operators: torch operators run on a device.
        replays: graphs replayed; what a replay runs is not counted again.
    """

    device_to_host: int = 0
    host_to_device: int = 0
    synchronisations: int = 0
    allocations: int = 0
    launches: int = 0
    operators: int = 0
    replays: int = 0

    def __sub__(self, other: Counters) -> Counters:
        numbers = {f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)}
        return Counters(**numbers)


COUNTERS = Counters()
"""The running numbers of this process; :func:`counters` gives a snapshot."""


@dataclass
class Waits:
    """Who is asked before the host waits.

    Attributes:
        refusal: raises if the host must not wait here; None lets it.
    """

    refusal: Callable[[str], None] | None = None


waits = Waits()


def host_waits(what: str) -> None:
    """Count that the host waits for a device in ``what``."""
    if waits.refusal is not None:
        waits.refusal(what)
    COUNTERS.synchronisations += 1


def counters() -> Counters:
    """Return the numbers as of now."""
    from ascend_ops_core.testing.simulated_npu.memory import MEMORY

    return replace(COUNTERS, allocations=sum(one.allocations for one in MEMORY.devices))
