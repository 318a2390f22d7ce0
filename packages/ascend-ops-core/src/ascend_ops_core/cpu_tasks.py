"""Tasks that the threads of one parallel region take as they become free.

numba cuts a parallel loop into equal parts beforehand, so a thread that wakes up late, or that
shares its core with other work, holds up all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def take_task(typingctx: Any, taken: Any) -> tuple[Any, Callable[..., Any]]:
    """The next task's number, from 0; each number is handed out once.

    Args:
        taken: ``[1]`` int64, zero before the first call, shared by the threads.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(taken), codegen
