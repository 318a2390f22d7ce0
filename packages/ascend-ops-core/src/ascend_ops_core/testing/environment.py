"""An environment in which forgotten writes and contention show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ascend_ops_core.cpu_kernels import follow_torch_threads


@contextmanager
def strict_environment() -> Iterator[None]:
    """Fill fresh tensors with NaN and compute on one thread; undone on exit.

    A kernel that leaves a part of ``torch.empty`` unwritten then gives NaN instead of whatever
    the allocator had. Tests are too small for a second thread to pay.
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
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        memory.fill_uninitialized_memory = fill
        torch.set_num_threads(threads)
        follow_torch_threads()
