"""Keeps numba's thread count equal to torch's."""

from __future__ import annotations

from functools import cache

import numba
import torch


def follow_torch() -> None:
    """Set numba's thread count for this thread to torch's (bounded by numba's own pool)."""
    _start_pool()
    wanted = max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    if numba.get_num_threads() != wanted:
        numba.set_num_threads(wanted)


@cache
def _start_pool() -> None:
    """Start numba's pool, which tells OpenMP its own number of threads, and leave torch's.

    vLLM's attention stops where that changes between a step's beginning and its layers.
    """
    threads = torch.get_num_threads()
    numba.get_num_threads()
    # vLLM puts a function that does nothing in the place of `torch.set_num_threads`.
    torch._C.set_num_threads(threads)
