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
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(taken), codegen
