"""Keeps numba's thread count equal to torch's."""

from __future__ import annotations

import numba
import torch


def follow_torch() -> None:
    """Set numba's thread count for this thread to torch's (bounded by numba's own pool)."""
    wanted = max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    if numba.get_num_threads() != wanted:
        numba.set_num_threads(wanted)
