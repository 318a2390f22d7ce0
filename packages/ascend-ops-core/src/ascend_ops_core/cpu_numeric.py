"""Shared pieces of the numba kernels: bfloat16 access and the flags they are compiled with.

numba has no bfloat16, so kernels see such a tensor as its uint16 bits and widen each value with
:func:`bf16_to_f32`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Reassociation lets LLVM vectorise float sums; NaN and infinity keep their meaning, which masks
# and poisoned buffers rely on.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


@intrinsic
def bf16_to_f32(typingctx: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """Widen the uint16 bits of a bfloat16 to float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        wide = builder.shl(builder.zext(args[0], i32), ir.Constant(i32, 16))
        return builder.bitcast(wide, ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def f32_to_bf16(typingctx: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Round a float32 to the uint16 bits of the nearest bfloat16 (ties to even, NaN kept)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, i16 = ir.IntType(32), ir.IntType(16)
        bits = builder.bitcast(args[0], i32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(i32, 16)), ir.Constant(i32, 1))
        rounded = builder.add(bits, builder.add(odd, ir.Constant(i32, 0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        kept = builder.select(is_nan, ir.Constant(i32, 0x7FC00000), rounded)
        return builder.trunc(builder.lshr(kept, ir.Constant(i32, 16)), i16)

    return types.uint16(types.float32), codegen


def as_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy view of a CPU tensor; bfloat16 comes back as its uint16 bits."""
    plain = x.detach() if x.requires_grad else x
    return plain.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else plain.numpy()
