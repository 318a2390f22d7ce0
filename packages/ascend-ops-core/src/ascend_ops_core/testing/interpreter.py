"""Triton kernels on a CPU, through Triton's interpreter.

Needs stock Triton, and ``TRITON_INTERPRET=1`` set before a module with kernels is imported.
Not run on hardware: this shows what a kernel computes, not what a compiler makes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch, executor


@contextmanager
def interpreter() -> Iterator[None]:
    """Run the launches inside this block through the interpreter, on CPU tensors.

    Raises:
        InvalidInputError: ``TRITON_INTERPRET`` is not 1, so kernels would be compiled.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise InvalidInputError(
            f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')!r}",
            "the interpreter is chosen when a kernel's module is imported",
            "Set TRITON_INTERPRET=1 before Python starts.",
        )
    _mend_bfloat16_dot()
    with executor(interpret):
        yield


def interpret(launch: Launch) -> None:
    """Execute one launch on CPU tensors."""
    _mend_bfloat16_dot()
    launch.kernel[(launch.grid,)](**launch.arguments, **launch.constants)


@cache
def _mend_bfloat16_dot() -> None:
    """Let ``tl.dot`` of bfloat16 multiply numbers.

    Triton's interpreter holds bfloat16 as 16-bit integers and hands those to numpy's matmul.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter as triton_interpreter

    handle = triton_interpreter.TensorHandle
    builder = triton_interpreter.InterpreterBuilder
    original = builder.create_dot

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return handle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, accumulator: Any, *rest: Any) -> Any:
        return original(self, widened(a), widened(b), accumulator, *rest)

    builder.create_dot = create_dot


def bfloat16_dot_needs_mending() -> bool:
    """Whether the installed Triton still has the defect (a test watches this)."""
    from triton.runtime import interpreter as triton_interpreter

    source = triton_interpreter.InterpreterBuilder.create_dot.__code__
    return "bfloat16" not in source.co_names


def interpreted_device(device: torch.device) -> bool:
    """Whether the interpreter can read tensors of ``device`` in place."""
    return device.type == "cpu"
