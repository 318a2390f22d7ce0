"""Tasks that the threads of one parallel region take as they become free.

numba cuts a parallel loop into equal parts beforehand, so a thread that wakes up late, or that
shares its core with other work, holds up all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_WORD = ir.IntType(64)
# Looks at the others' count before another process gets the core.
_LOOKS = 256

_give_way = types.ExternalFunction("sched_yield", types.int32())


@njit(cache=True)
def no_task_taken():  # type: ignore[no-untyped-def]
    """What ``take_task`` counts in.

    Made here since a parallel kernel fills an array of its own by a parallel region more.
    """
    return np.zeros(1, dtype=np.int64)


@intrinsic
def take_task(typingctx: Any, taken: Any) -> tuple[Any, Callable[..., Any]]:
    """The next task's number, from 0; each number is handed out once.

    Args:
        taken: from :func:`no_task_taken`, shared by the threads.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", place, ir.Constant(_WORD, 1), "monotonic")

    return types.int64(taken), codegen


@intrinsic
def task_done(typingctx: Any, done: Any) -> tuple[Any, Callable[..., Any]]:
    """Count a task that is done, and let others see what it wrote.

    Args:
        done: from :func:`no_task_taken`, shared by the threads.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", place, ir.Constant(_WORD, 1), "release")

    return types.int64(done), codegen


@intrinsic
def _tasks_done(typingctx: Any, done: Any) -> tuple[Any, Callable[..., Any]]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(done), codegen


@njit(cache=True)
def wait_for_tasks(done, count):  # type: ignore[no-untyped-def]
    """Wait until so many tasks are done, and see what they wrote.

    Every task must have been taken, so that a thread works on it: those that no thread has taken
    would be waited for in vain.

    Args:
        done: what :func:`task_done` counts in.
        count: tasks.
    """
    looks = 0
    while _tasks_done(done) < count:
        looks += 1
        if looks % _LOOKS == 0:
            _give_way()
