"""Gives back the memory of a checkpoint's mapped pages as soon as they were copied.

safetensors maps its files, so every tensor that was read stays resident until its file is closed:
loading would peak at twice the size of the weights.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

# Reclaims pages without changing what they hold: mapped pages are read from their file again, and
# ordinary memory is left alone or swapped. Linux 5.4 and newer; older kernels refuse it.
_MADV_PAGEOUT = 21


def release_pages(tensor: torch.Tensor) -> bool:
    """Let the system take back the whole pages that hold ``tensor``; its values stay as they are.

    Returns:
        True when the system accepted; False for a tensor smaller than a page, one that is not
        contiguous, and where the system has no such call.
    """
    if not sys.platform.startswith("linux") or not tensor.is_contiguous():
        return False
    page = mmap.PAGESIZE
    start = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if end <= start:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.madvise(ctypes.c_void_p(start), end - start, _MADV_PAGEOUT) == 0)
