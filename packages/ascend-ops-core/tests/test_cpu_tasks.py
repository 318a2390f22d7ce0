"""Tasks that threads take, and arrays over addresses."""

from __future__ import annotations

import numpy as np
import pytest
from ascend_ops_core.cpu_numeric import array_at
from ascend_ops_core.cpu_tasks import no_task_taken, take_task, task_done, wait_for_tasks
from numba import njit, prange


@njit(parallel=True)
def _count(tasks, workers):  # type: ignore[no-untyped-def]
    taken = no_task_taken()
    times = np.zeros(tasks, dtype=np.int64)
    for _ in prange(workers):
        task = take_task(taken)
        while task < tasks:
            times[task] += 1
            task = take_task(taken)
    return times


@pytest.mark.parametrize("workers", [1, 2, 128])
def test_each_task_is_handed_out_once(workers: int) -> None:
    assert (_count(100_000, workers) == 1).all()


@njit(parallel=True)
def _in_two_steps(tasks, workers):  # type: ignore[no-untyped-def]
    """Each task of the second step reads what all of the first wrote."""
    taken = no_task_taken()
    done = no_task_taken()
    written = np.zeros(tasks, dtype=np.int64)
    sums = np.zeros(tasks, dtype=np.int64)
    for _ in prange(workers):
        task = take_task(taken)
        while task < 2 * tasks:
            if task < tasks:
                written[task] = task
                task_done(done)
            else:
                wait_for_tasks(done, tasks)
                for i in range(tasks):
                    sums[task - tasks] += written[i]
            task = take_task(taken)
    return sums


@pytest.mark.parametrize("workers", [1, 2, 128])
@pytest.mark.parametrize("tasks", [1, 2, 1000])
def test_a_step_waits_for_the_one_before(tasks: int, workers: int) -> None:
    for _ in range(20):
        assert (_in_two_steps(tasks, workers) == tasks * (tasks - 1) // 2).all()


@njit
def _copy(address, shape, kind):  # type: ignore[no-untyped-def]
    return array_at(address, shape, kind).copy()


@pytest.mark.parametrize(
    "kind", [np.float32(0), np.uint16(0), np.int64(0)], ids=lambda kind: kind.dtype.name
)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2), (0, 4)])
def test_array_at_an_address(shape: tuple[int, ...], kind: np.generic) -> None:
    given = np.arange(np.prod(shape)).astype(kind.dtype).reshape(shape)
    got = _copy(given.ctypes.data, shape, kind)
    assert got.dtype == kind.dtype
    assert np.array_equal(got, given)
