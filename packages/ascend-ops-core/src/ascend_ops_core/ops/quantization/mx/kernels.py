"""Microscaling formats in Triton: a block of 32 values is a row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.quantization.kernels import (
    e2m1_codes,
    e2m1_values,
    e4m3_bits,
    e4m3_values,
    e8m0_code,
    e8m0_values,
    magnitude,
    saturated,
    times_inverse_power,
)
from ascend_ops_core.tiling import next_power_of_two, tile_rows

_BLOCK = 32

# Bytes alive per element besides what is loaded and stored. Pairing neighbours (split, join) puts
# the pair on an axis of its own, which UB pads to 32 bytes.
_LOCAL = 40
_PAIRING = 160


@triton.jit
def _mxfp8_quantize_kernel(
    x_ptr, q_ptr, scale_ptr, rows, programs, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    r = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        here = r < rows - first
        tile = first * BLOCK + r[:, None] * BLOCK + columns[None, :]
        x = tl.load(x_ptr + tile, mask=here[:, None], other=0.0).to(tl.float32)
        amax = tl.max(magnitude(x), axis=1)
        code = e8m0_code((amax.to(tl.int32, bitcast=True) >> 23) - 8, amax)
        q = saturated(times_inverse_power(x, code), -448.0, 448.0)
        tl.store(q_ptr + tile, e4m3_bits(q), mask=here[:, None])
        tl.store(scale_ptr + first + r, code.to(tl.uint8), mask=here)


@triton.jit
def _mxfp8_dequantize_kernel(
    q_ptr, scale_ptr, out_ptr, rows, programs, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    r = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        here = r < rows - first
        tile = first * BLOCK + r[:, None] * BLOCK + columns[None, :]
        value = e4m3_values(tl.load(q_ptr + tile, mask=here[:, None], other=0))
        scale = e8m0_values(tl.load(scale_ptr + first + r, mask=here, other=0).to(tl.int32))
        out = (value * scale[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + tile, out, mask=here[:, None])


@triton.jit
def _mxfp4_quantize_kernel(
    x_ptr, q_ptr, scale_ptr, rows, programs, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    half: tl.constexpr = BLOCK // 2
    r = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    pairs = tl.arange(0, half)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        here = r < rows - first
        tile = x_ptr + first * BLOCK + r[:, None] * BLOCK + columns[None, :]
        x = tl.load(tile, mask=here[:, None], other=0.0).to(tl.float32)
        amax = tl.max(magnitude(x), axis=1)
        code = e8m0_code((amax.to(tl.int32, bitcast=True) >> 23) - 2, amax)
        codes = e2m1_codes(times_inverse_power(x, code))
        low, high = tl.split(tl.reshape(codes, (ROWS, half, 2)))
        out = q_ptr + first * half + r[:, None] * half + pairs[None, :]
        tl.store(out, (low | (high << 4)).to(tl.uint8), mask=here[:, None])
        tl.store(scale_ptr + first + r, code.to(tl.uint8), mask=here)


@triton.jit
def _mxfp4_dequantize_kernel(
    q_ptr, scale_ptr, out_ptr, rows, programs, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    half: tl.constexpr = BLOCK // 2
    r = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    pairs = tl.arange(0, half)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        here = r < rows - first
        packed = q_ptr + first * half + r[:, None] * half + pairs[None, :]
        packed = tl.load(packed, mask=here[:, None], other=0).to(tl.int32)
        scale = e8m0_values(tl.load(scale_ptr + first + r, mask=here, other=0).to(tl.int32))
        low = e2m1_values(packed & 15) * scale[:, None]
        high = e2m1_values(packed >> 4) * scale[:, None]
        value = tl.reshape(tl.join(low, high), (ROWS, BLOCK)).to(out_ptr.dtype.element_ty)
        tile = first * BLOCK + r[:, None] * BLOCK + columns[None, :]
        tl.store(out_ptr + tile, value, mask=here[:, None])


@triton.jit
def _pack_kernel(codes_ptr, packed_ptr, pairs, programs, PAIRS: tl.constexpr):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * PAIRS
        i = tl.arange(0, 2 * PAIRS)
        codes = tl.load(codes_ptr + 2 * first + i, mask=i < 2 * (pairs - first), other=0)
        low, high = tl.split(tl.reshape(codes.to(tl.int32) & 15, (PAIRS, 2)))
        j = tl.arange(0, PAIRS)
        packed = (low | (high << 4)).to(tl.uint8)
        tl.store(packed_ptr + first + j, packed, mask=j < pairs - first)


@triton.jit
def _unpack_kernel(packed_ptr, codes_ptr, pairs, programs, PAIRS: tl.constexpr):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * PAIRS
        j = tl.arange(0, PAIRS)
        packed = tl.load(packed_ptr + first + j, mask=j < pairs - first, other=0).to(tl.int32)
        codes = tl.reshape(tl.join(packed & 15, packed >> 4), (2 * PAIRS,))
        i = tl.arange(0, 2 * PAIRS)
        tl.store(codes_ptr + 2 * first + i, codes.to(tl.uint8), mask=i < 2 * (pairs - first))


def mxfp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.mxfp8_quantize`."""
    q = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = _empty(x, x.shape[-1] // _BLOCK, torch.uint8)
    arguments = {"x_ptr": x.contiguous(), "q_ptr": q.view(torch.uint8), "scale_ptr": scale}
    _start(_mxfp8_quantize_kernel, arguments, scale.numel(), x.element_size() + 1, _LOCAL)
    return q, scale


def mxfp8_dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.mxfp8_dequantize`."""
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    arguments = {
        "q_ptr": q.contiguous().view(torch.uint8),
        "scale_ptr": scale.contiguous(),
        "out_ptr": out,
    }
    _start(_mxfp8_dequantize_kernel, arguments, scale.numel(), out.element_size() + 1, _LOCAL)
    return out


def mxfp4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.mxfp4_quantize`."""
    q = _empty(x, x.shape[-1] // 2, torch.uint8)
    scale = _empty(x, x.shape[-1] // _BLOCK, torch.uint8)
    arguments = {"x_ptr": x.contiguous(), "q_ptr": q, "scale_ptr": scale}
    _start(_mxfp4_quantize_kernel, arguments, scale.numel(), x.element_size() + 1, _PAIRING)
    return q, scale


def mxfp4_dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.mxfp4_dequantize`."""
    out = _empty(q, 2 * q.shape[-1], dtype)
    arguments = {"q_ptr": q.contiguous(), "scale_ptr": scale.contiguous(), "out_ptr": out}
    _start(_mxfp4_dequantize_kernel, arguments, scale.numel(), out.element_size() + 1, _PAIRING)
    return out


def fp4_pack(codes: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.fp4_pack`."""
    packed = _empty(codes, codes.shape[-1] // 2, torch.uint8)
    _start_pairs(_pack_kernel, {"codes_ptr": codes.contiguous(), "packed_ptr": packed}, packed)
    return packed


def fp4_unpack(packed: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.fp4_unpack`."""
    codes = _empty(packed, 2 * packed.shape[-1], torch.uint8)
    _start_pairs(_unpack_kernel, {"packed_ptr": packed.contiguous(), "codes_ptr": codes}, packed)
    return codes


def _empty(x: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], width), dtype=dtype, device=x.device)


def _start(kernel: Any, arguments: dict[str, Any], rows: int, streamed: int, local: int) -> None:
    """Launch a kernel over ``rows`` blocks, with as many at a time as fit."""
    tile = tile_rows(
        current_facts(),
        _BLOCK,
        streamed=streamed,
        local=local,
        per_row=64,
        maximum=next_power_of_two(rows),
    )
    programs = -(-rows // tile)
    arguments |= {"rows": rows, "programs": programs}
    launch(kernel, programs, arguments, {"ROWS": tile, "BLOCK": _BLOCK})


def _start_pairs(kernel: Any, arguments: dict[str, Any], packed: torch.Tensor) -> None:
    """Launch a kernel over pairs of FP4 codes, with as many at a time as fit."""
    pairs = packed.numel()
    tile = tile_rows(
        current_facts(),
        _BLOCK,
        streamed=2,
        local=_PAIRING,
        maximum=next_power_of_two(-(-pairs // _BLOCK)),
    )
    programs = -(-pairs // (tile * _BLOCK))
    arguments |= {"pairs": pairs, "programs": programs}
    launch(kernel, programs, arguments, {"PAIRS": tile * _BLOCK})
