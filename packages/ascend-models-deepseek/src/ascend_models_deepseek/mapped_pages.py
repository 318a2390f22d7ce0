"""Gives back the memory of a checkpoint's mapped pages as soon as they were copied.

safetensors maps its files, so every tensor that was read stays resident until its file is closed:
loading would peak at twice the size of the weights. The pages come from the file and may be
dropped at any time.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
from pathlib import Path

import torch

_MAPS = Path("/proc/self/maps")
_MADV_DONTNEED = 4


class MappedPages:
    """Releases pages that belong to mapped safetensors files, and no others."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._libc = ctypes.CDLL(None, use_errno=True) if _MAPS.exists() else None

    def release(self, tensor: torch.Tensor) -> bool:
        """Drop the whole pages that hold ``tensor``; its values are read from the file again.

        Returns:
            True when pages were dropped; False for a tensor in ordinary memory, for one smaller
            than a page, and on systems without ``/proc``.
        """
        if self._libc is None or not tensor.is_contiguous():
            return False
        page = mmap.PAGESIZE
        start = -(-tensor.data_ptr() // page) * page
        end = (tensor.data_ptr() + tensor.nbytes) // page * page
        if end <= start or not self._is_mapped(start, end):
            return False
        return bool(self._libc.madvise(ctypes.c_void_p(start), end - start, _MADV_DONTNEED) == 0)

    def _is_mapped(self, start: int, end: int) -> bool:
        if not self._contains(start, end):
            self._ranges = _safetensors_ranges()
        return self._contains(start, end)

    def _contains(self, start: int, end: int) -> bool:
        i = bisect.bisect_right(self._ranges, (start, 1 << 64)) - 1
        return i >= 0 and self._ranges[i][0] <= start and end <= self._ranges[i][1]


def _safetensors_ranges() -> list[tuple[int, int]]:
    ranges = []
    for line in _MAPS.read_text().splitlines():
        if line.endswith(".safetensors"):
            low, high = line.split(" ", 1)[0].split("-")
            ranges.append((int(low, 16), int(high, 16)))
    return sorted(ranges)
