"""The Hadamard rotation in Triton, as products with small Hadamard matrices.

``H`` of ``A * B`` channels is the Kronecker product of those of ``A`` and ``B``, so a block seen
as a matrix ``[A, B]`` becomes ``H_A @ block @ H_B``.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

# The matrix unit takes tiles of 16 and more; 128 keeps two operands within L0.
_LEAST, _MOST = 16, 128


@triton.jit
def _hadamard_kernel(
    x_ptr,
    matrix_ptr,
    out_ptr,
    rows,
    scale,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    c = tl.arange(0, BLOCK)
    matrix = tl.load(matrix_ptr + c[:, None] * BLOCK + c[None, :])
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        r = tl.arange(0, ROWS)
        mask = (r < rows - first)[:, None] & (c < WIDTH)[None, :]
        here = first * WIDTH + r[:, None] * WIDTH + c[None, :]
        x = tl.load(x_ptr + here, mask=mask, other=0.0)
        y = tl.dot(x, matrix, input_precision="ieee") * scale
        tl.store(out_ptr + here, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _two_sided_hadamard_kernel(
    x_ptr,
    left_ptr,
    right_ptr,
    out_ptr,
    scale,
    programs,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    a, b = tl.arange(0, LEFT), tl.arange(0, RIGHT)
    left = tl.load(left_ptr + a[:, None] * LEFT + a[None, :])
    right = tl.load(right_ptr + b[:, None] * RIGHT + b[None, :])
    inside = a[:, None] * RIGHT + b[None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * (LEFT * RIGHT)
        x = tl.load(x_ptr + first + inside)
        y = tl.dot(x, right, input_precision="ieee")
        z = tl.dot(left, y, input_precision="ieee") * scale
        tl.store(out_ptr + first + inside, z.to(out_ptr.dtype.element_ty))


def hadamard(x: torch.Tensor, block: int, scale: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hadamard.hadamard`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.numel() // block
    arguments = {"x_ptr": x.contiguous(), "out_ptr": out, "scale": scale}
    if block <= _MOST:
        padded = max(block, _LEAST)
        tile = tile_rows(
            current_facts(),
            padded,
            streamed=2 * x.element_size(),
            local=8,
            minimum=_LEAST,
            maximum=min(next_power_of_two(rows), _MOST),
        )
        programs = -(-rows // tile)
        arguments |= {
            "matrix_ptr": matrix_of(padded, x.dtype, x.device),
            "rows": rows,
            "programs": programs,
        }
        constants = {"WIDTH": block, "ROWS": tile, "BLOCK": padded}
        launch(_hadamard_kernel, programs, arguments, constants, cube=True)
        return out
    right = min(block // _LEAST, _MOST)
    arguments |= {
        "left_ptr": matrix_of(block // right, torch.float32, x.device),
        "right_ptr": matrix_of(right, x.dtype, x.device),
        "programs": rows,
    }
    constants = {"LEFT": block // right, "RIGHT": right}
    launch(_two_sided_hadamard_kernel, rows, arguments, constants, cube=True)
    return out


def matrix_of(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The Hadamard matrix of a power-of-two size, made once for a dtype and device."""
    if device.type == "meta":
        return torch.empty(size, size, dtype=dtype, device=device)
    return _made(size, dtype, device)


@cache
def _made(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix.to(dtype=dtype, device=device)
