"""Triton kernels on a CPU, through Triton's interpreter.

Needs stock Triton, and ``TRITON_INTERPRET=1`` set before a module with kernels is imported.
Not run on hardware: this shows what a kernel computes, not what a compiler makes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch, executor
from ascend_ops_core.testing.interpreter_patches import language_patched_once


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
    with executor(interpret):
        yield


def interpret(launch: Launch) -> None:
    """Execute one launch on CPU tensors."""
    # The interpreter allocates a view of every tensor; those need no fences.
    with _mended_bfloat16(), language_patched_once(), torch._C.DisableTorchFunction():
        launch.kernel[(launch.grid,)](**launch.arguments, **launch.constants)


@contextmanager
def _mended_bfloat16() -> Iterator[None]:
    """Let bfloat16 values multiply and round as on hardware.

    Triton's interpreter holds bfloat16 as 16-bit integers. It hands those to numpy's matmul, and
    it cuts float32 off where every device rounds to the nearest, ties to even.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter as triton_interpreter

    handle = triton_interpreter.TensorHandle
    builder = triton_interpreter.InterpreterBuilder
    multiply, cast = builder.create_dot, builder.cast_impl

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return handle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, accumulator: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), accumulator, *rest)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        types = (source.dtype.scalar, target.scalar)
        if types == (tl.bfloat16, tl.float32):
            return widened(source)
        if types == (tl.float32, tl.bfloat16):
            return handle(_rounded_to_bfloat16(source.data), tl.bfloat16)
        return cast(self, source, target)

    builder.create_dot, builder.cast_impl = create_dot, cast_impl
    try:
        yield
    finally:
        builder.create_dot, builder.cast_impl = multiply, cast


def _rounded_to_bfloat16(values: Any) -> Any:
    """The 16 bits of float32 values, as numpy arrays."""
    import numpy as np

    bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.int64)
    to_nearest_even = bits + 0x7FFF + ((bits >> 16) & 1)
    # That sum would carry a NaN's fraction into its exponent or sign.
    quiet = bits | 0x400000
    return (np.where(np.isnan(values), quiet, to_nearest_even) >> 16).astype(np.uint16)
