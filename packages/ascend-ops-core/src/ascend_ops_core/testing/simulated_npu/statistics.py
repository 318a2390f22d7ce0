"""The memory functions that ``torch.npu`` and ``torch.accelerator`` share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ascend_ops_core.testing.simulated_npu.memory import MEMORY
from ascend_ops_core.testing.simulated_npu.state import index_of


def memory_allocated(device: Any = None) -> int:
    """Bytes of the device in use."""
    return MEMORY.of(index_of(device)).allocated


def max_memory_allocated(device: Any = None) -> int:
    """Largest number of bytes in use since the last reset."""
    return MEMORY.of(index_of(device)).peak


def memory_reserved(device: Any = None) -> int:
    """Bytes that a caching allocator would hold."""
    return MEMORY.of(index_of(device)).reserved


def max_memory_reserved(device: Any = None) -> int:
    """Largest number of such bytes since the last reset."""
    return MEMORY.of(index_of(device)).peak_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start from what is in use now."""
    here = MEMORY.of(index_of(device))
    here.peak = here.allocated
    here.peak_reserved = here.reserved


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let the numbers of allocations and frees start from 0."""
    here = MEMORY.of(index_of(device))
    here.allocations = here.frees = 0


def empty_cache() -> None:
    """Give back what is reserved and not in use, on every device."""
    for index in range(len(MEMORY.devices)):
        here = MEMORY.of(index)
        here.reserved = here.allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the device; reserved bytes are not free."""
    here = MEMORY.of(index_of(device))
    return here.total - here.reserved, here.total


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Figures under the names that torch's caching allocators use."""
    here = MEMORY.of(index_of(device))
    return OrderedDict(
        {
            "allocated_bytes.all.current": here.allocated,
            "allocated_bytes.all.peak": here.peak,
            "reserved_bytes.all.current": here.reserved,
            "reserved_bytes.all.peak": here.peak_reserved,
            "allocation.all.current": here.allocations - here.frees,
            "allocation.all.allocated": here.allocations,
            "allocation.all.freed": here.frees,
            "num_ooms": here.refused,
        }
    )
