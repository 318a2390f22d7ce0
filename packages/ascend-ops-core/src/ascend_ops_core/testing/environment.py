"""An environment in which forgotten writes and contention show and every run draws the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from ascend_ops_core.cpu_kernels import follow_torch_threads

SEED: Final = 20260805


@contextmanager
def strict_environment() -> Iterator[None]:
    """Fill fresh tensors with NaN, compute on one thread, seed torch's generator; undone on exit.

    A kernel that leaves a part of ``torch.empty`` unwritten then gives NaN instead of whatever
    the allocator had. Tests are too small for a second thread to pay. Values that torch draws
    depend on the test alone, so a failure can be repeated; to try others is hypothesis's work.
    """
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = True
    follow_torch_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        memory.fill_uninitialized_memory = fill
        torch.set_num_threads(threads)
        follow_torch_threads()
