"""The compressor in Triton: a softmax over rows that keeps a running maximum for every channel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.tiling import block_of, next_power_of_two, tile_rows

# Bytes alive per channel of a row besides what is loaded: exponent, weight and weighted value.
_LIVE_BYTES = 12

# Bytes per channel of the maximum, the sum, the weighted sum and the new maximum.
_STATE_BYTES = 16

# Below every gate but -inf, and finite, so that an absent row's weight is exp(-inf) and not NaN.
_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _bias_kernel(
    rows_ptr,
    ape_ptr,
    position_ptr,
    out_ptr,
    programs,
    RATIO: tl.constexpr,
    SERIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        phase = tl.load(position_ptr + unit).to(tl.int32) % RATIO
        kv = as_int64(unit) * (2 * SERIES)
        for start in range(0, SERIES, BLOCK):
            inside = lanes < SERIES - start
            here = kv + start + lanes
            value = tl.load(rows_ptr + here, mask=inside, other=0.0).to(tl.float32)
            tl.store(out_ptr + here, value, mask=inside)
            gate = tl.load(rows_ptr + here + SERIES, mask=inside, other=0.0).to(tl.float32)
            bias = tl.load(ape_ptr + phase * SERIES + start + lanes, mask=inside, other=0.0)
            tl.store(out_ptr + here + SERIES, gate + bias, mask=inside)


@triton.jit
def _windows_kernel(
    state_ptr,
    first_ptr,
    out_ptr,
    entry_stride,
    row_stride,
    programs,
    OVERLAP: tl.constexpr,
    RATIO: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        entry = unit // blocks
        channel = (unit - entry * blocks) * BLOCK
        c = tl.arange(0, BLOCK)
        r = tl.arange(0, ROWS)
        inside = c < WIDTH - channel
        window = state_ptr + as_int64(entry) * entry_stride + channel
        highest = tl.full((BLOCK,), _LOWEST, tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        pooled = tl.zeros((BLOCK,), tl.float32)
        for series in tl.static_range(OVERLAP):
            rows = RATIO
            if series + 1 < OVERLAP:
                rows = tl.where(tl.load(first_ptr + entry) != 0, 0, RATIO)
            for start in range(0, rows, ROWS):
                mask = (r < rows - start)[:, None] & inside[None, :]
                tile = window + (series * RATIO + start) * row_stride + series * WIDTH
                tile = tile + r[:, None] * row_stride + c[None, :]
                kv = tl.load(tile, mask=mask, other=0.0)
                gate = tl.load(tile + OVERLAP * WIDTH, mask=mask, other=float("-inf"))
                peak = tl.max(gate, axis=0)
                peak = tl.where(peak > highest, peak, highest)
                weight = tl.exp(gate - peak[None, :])
                before = tl.exp(highest - peak)
                total = total * before + tl.sum(weight, axis=0)
                pooled = pooled * before + tl.sum(weight * kv, axis=0)
                highest = peak
        tl.store(out_ptr + as_int64(entry) * WIDTH + channel + c, pooled / total, mask=inside)


@triton.jit
def _paged_windows_kernel(
    state_ptr,
    block_ptr,
    offset_ptr,
    first_ptr,
    out_ptr,
    block_stride,
    row_stride,
    programs,
    OVERLAP: tl.constexpr,
    RATIO: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        entry = unit // blocks
        channel = (unit - entry * blocks) * BLOCK
        c = tl.arange(0, BLOCK)
        here = as_int64(entry) * (OVERLAP * RATIO)
        highest = tl.full((BLOCK,), _LOWEST, tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        pooled = tl.zeros((BLOCK,), tl.float32)
        read = 0
        for series in tl.static_range(OVERLAP):
            rows = RATIO
            if series + 1 < OVERLAP:
                rows = tl.where(tl.load(first_ptr + entry) != 0, 0, RATIO)
            for row in range(0, rows):
                at = here + series * RATIO + row
                block = tl.load(block_ptr + at).to(tl.int32)
                offset = tl.load(offset_ptr + at).to(tl.int32)
                exists = block >= 0
                # Nothing is transferred for an absent row, so its address only has to be formed.
                lanes = tl.where(exists, WIDTH - channel, 0)
                block = tl.where(exists, block, 0)
                offset = tl.where(exists, offset, 0)
                read += tl.where(exists, 1, 0)
                line = state_ptr + as_int64(block) * block_stride + as_int64(offset) * row_stride
                line = line + series * WIDTH + channel + c
                kv = tl.load(line, mask=c < lanes, other=0.0)
                gate = tl.load(line + OVERLAP * WIDTH, mask=c < lanes, other=float("-inf"))
                peak = tl.where(gate > highest, gate, highest)
                weight = tl.exp(gate - peak)
                before = tl.exp(highest - peak)
                total = total * before + weight
                pooled = pooled * before + weight * kv
                highest = peak
        result = tl.where(read > 0, pooled / total, 0.0)
        out = out_ptr + as_int64(entry) * WIDTH + channel + c
        tl.store(out, result, mask=c < WIDTH - channel)


def project_states(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.project_states`; the product is torch's."""
    rows = linear(hidden, wkv_wgate)
    ratio, series = ape.shape
    tokens = rows.shape[0]
    out = torch.empty((tokens, 2 * series), dtype=torch.float32, device=rows.device)
    block = block_of(
        current_facts(),
        streamed=2 * rows.element_size() + 12,
        local=8,
        maximum=next_power_of_two(series),
    )
    arguments = {
        "rows_ptr": rows,
        "ape_ptr": ape.contiguous(),
        "position_ptr": position.contiguous(),
        "out_ptr": out,
        "programs": tokens,
    }
    constants = {"RATIO": ratio, "SERIES": series, "BLOCK": block}
    launch(_bias_kernel, tokens, arguments, constants)
    return out


def compress_windows(
    state_rows: torch.Tensor, first_entry: torch.Tensor, overlap: int
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.compress_windows`."""
    if state_rows.stride(2) != 1:
        state_rows = state_rows.contiguous()
    entries, rows, values = state_rows.shape
    ratio, width = rows // overlap, values // (2 * overlap)
    out = torch.empty((entries, width), dtype=torch.float32, device=state_rows.device)
    facts = current_facts()
    sizes = {"streamed": 8, "local": _LIVE_BYTES}
    block = block_of(facts, **sizes, fixed=0, maximum=next_power_of_two(width))
    tile = tile_rows(
        facts,
        block,
        **sizes,
        fixed=_STATE_BYTES * block,
        maximum=next_power_of_two(ratio),
    )
    programs = entries * -(-width // block)
    arguments = {
        "state_ptr": state_rows,
        "first_ptr": first_entry.contiguous().view(torch.int8),
        "out_ptr": out,
        "entry_stride": state_rows.stride(0),
        "row_stride": state_rows.stride(1),
        "programs": programs,
    }
    constants = {"OVERLAP": overlap, "RATIO": ratio, "WIDTH": width, "ROWS": tile, "BLOCK": block}
    launch(_windows_kernel, programs, arguments, constants)
    return out


def compress_paged_windows(
    state_cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    first_entry: torch.Tensor,
    overlap: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.compress_paged_windows`."""
    entries, rows = block.shape
    width = state_cache.shape[2] // (2 * overlap)
    out = torch.empty((entries, width), dtype=torch.float32, device=state_cache.device)
    lanes = block_of(
        current_facts(),
        streamed=8,
        local=_LIVE_BYTES + _STATE_BYTES,
        maximum=next_power_of_two(width),
    )
    programs = entries * -(-width // lanes)
    arguments = {
        "state_ptr": state_cache,
        "block_ptr": block.contiguous(),
        "offset_ptr": offset.contiguous(),
        "first_ptr": first_entry.contiguous().view(torch.int8),
        "out_ptr": out,
        "block_stride": state_cache.stride(0),
        "row_stride": state_cache.stride(1),
        "programs": programs,
    }
    constants = {"OVERLAP": overlap, "RATIO": rows // overlap, "WIDTH": width, "BLOCK": lanes}
    launch(_paged_windows_kernel, programs, arguments, constants)
    return out
