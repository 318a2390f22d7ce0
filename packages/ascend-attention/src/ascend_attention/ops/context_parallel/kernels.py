"""Packing, merging and the local view of a selection in Triton.

A row of the packed buffer is read and written through two pointers to the same memory, one of the
values' dtype and one of float32 for the logarithm.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two, tile_rows

from ascend_attention.ops.context_parallel.layout import packed_words
from ascend_attention.ops.context_parallel.reference import in_front

# Below every logarithm, above -inf, so that differences are numbers.
_LOWEST = tl.constexpr(-3.0e38)
_NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def _pack_kernel(
    outs_ptr,
    lses_ptr,
    values_ptr,
    logarithms_ptr,
    tokens,
    programs,
    RANKS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FILLED: tl.constexpr,
    VALUES: tl.constexpr,
    WORDS: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
):
    HEAD_TILES: tl.constexpr = (HEADS + TAKEN - 1) // TAKEN
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // HEAD_TILES
        head = (unit - pair * HEAD_TILES) * TAKEN
        rank = pair // tokens
        token = pair - rank * tokens
        real = h < HEADS - head
        source = (as_int64(token) * RANKS + rank) * HEADS + head
        at = outs_ptr + source * WIDTH + h[:, None] * WIDTH + d[None, :]
        tile = tl.load(at, mask=real[:, None] & (d < WIDTH)[None, :], other=0.0)
        lse = tl.load(lses_ptr + source + h, mask=real, other=0.0)
        row = as_int64(pair) * HEADS + head
        to = values_ptr + row * VALUES + h[:, None] * VALUES + d[None, :]
        tl.store(to, tile, mask=real[:, None] & (d < FILLED)[None, :])
        tl.store(logarithms_ptr + row * WORDS + h * WORDS + (WORDS - 1), lse, mask=real)


def pack_attention_states(outs: torch.Tensor, lses: torch.Tensor, ranks: int) -> torch.Tensor:
    """See :func:`ascend_attention.ops.context_parallel.pack_attention_states`."""
    tokens, heads, width = outs.shape
    each, words = heads // ranks, packed_words(width, outs.dtype)
    packed = torch.empty((ranks, tokens, each, words), dtype=torch.int32, device=outs.device)
    per_word = 4 // outs.element_size()
    filled = (words - 1) * per_word
    padded = next_power_of_two(filled)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=2 * outs.element_size(),
        local=8,
        maximum=next_power_of_two(each),
    )
    programs = ranks * tokens * -(-each // taken)
    arguments = {
        "outs_ptr": outs.contiguous(),
        "lses_ptr": lses.contiguous(),
        "values_ptr": packed.view(outs.dtype),
        "logarithms_ptr": packed.view(torch.float32),
        "tokens": tokens,
        "programs": programs,
    }
    constants = {
        "RANKS": ranks,
        "HEADS": each,
        "WIDTH": width,
        "FILLED": filled,
        "VALUES": words * per_word,
        "WORDS": words,
        "PADDED": padded,
        "TAKEN": taken,
    }
    launch(_pack_kernel, programs, arguments, constants)
    return packed


@triton.jit
def _merge_packed_kernel(
    values_ptr,
    logarithms_ptr,
    out_ptr,
    lse_ptr,
    rows,
    programs,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    WORDS: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
):
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * TAKEN
        real = h < rows - first
        mask = real[:, None] & (d < WIDTH)[None, :]
        top = tl.full((TAKEN,), _LOWEST, tl.float32)
        for part in range(PARTS):
            at = logarithms_ptr + (as_int64(part) * rows + first) * WORDS + (WORDS - 1)
            lse = tl.load(at + h * WORDS, mask=real, other=0.0)
            top = tl.where(lse > top, lse, top)
        total = tl.zeros((TAKEN,), tl.float32)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for part in range(PARTS):
            here = as_int64(part) * rows + first
            at = logarithms_ptr + here * WORDS + (WORDS - 1)
            weight = tl.exp(tl.load(at + h * WORDS, mask=real, other=0.0) - top)
            total += weight
            at = values_ptr + here * VALUES + h[:, None] * VALUES + d[None, :]
            # What a rank without a row sends is garbage.
            used = mask & (weight > 0.0)[:, None]
            summed += tl.load(at, mask=used, other=0.0).to(tl.float32) * weight[:, None]
        some = total > 0.0
        out = summed * (1.0 / tl.where(some, total, 1.0))[:, None]
        to = out_ptr + first * WIDTH + h[:, None] * WIDTH + d[None, :]
        tl.store(to, out.to(out_ptr.dtype.element_ty), mask=mask)
        merged = tl.where(some, top + tl.log(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + first + h, merged, mask=real)


def merge_packed_states(
    packed: torch.Tensor, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.context_parallel.merge_packed_states`."""
    parts, tokens, heads, words = packed.shape
    out = torch.empty((tokens, heads, width), dtype=dtype, device=packed.device)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=packed.device)
    rows = tokens * heads
    padded = next_power_of_two(width)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=2 * dtype.itemsize,
        local=16,
        maximum=min(64, next_power_of_two(rows)),
    )
    programs = -(-rows // taken)
    arguments = {
        "values_ptr": packed.view(dtype),
        "logarithms_ptr": packed.view(torch.float32),
        "out_ptr": out,
        "lse_ptr": lse,
        "rows": rows,
        "programs": programs,
    }
    constants = {
        "PARTS": parts,
        "WIDTH": width,
        "VALUES": words * 4 // dtype.itemsize,
        "WORDS": words,
        "PADDED": padded,
        "TAKEN": taken,
    }
    launch(_merge_packed_kernel, programs, arguments, constants)
    return out, lse


@triton.jit
def _divided(values, DIVISOR: tl.constexpr, SHIFT: tl.constexpr):
    """Division of integers, which NPUs do one by one unless it is a shift."""
    if SHIFT >= 0:
        return values >> SHIFT
    return values // DIVISOR


@triton.jit
def _local_tokens_kernel(
    selected_ptr,
    rows_ptr,
    elements,
    programs,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    RANK_SHIFT: tl.constexpr,
    INTERLEAVE_SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * BLOCK
        inside = lanes < elements - first
        token = tl.load(selected_ptr + first + lanes, mask=inside, other=-1)
        used = token >= 0
        token = tl.where(used, token, 0)
        run = _divided(token, INTERLEAVE, INTERLEAVE_SHIFT)
        turn = _divided(run, RANKS, RANK_SHIFT)
        row = token + (turn - run) * INTERLEAVE
        here = used & (run - turn * RANKS == RANK)
        tl.store(rows_ptr + first + lanes, tl.where(here, row, _NOWHERE), mask=inside)


def local_tokens(
    selected: torch.Tensor, ranks: int, rank: int, interleave: int, places: int
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.context_parallel.local_tokens`.

    Sorting stays in torch, which does it on the device.
    """
    rows = torch.empty(selected.shape, dtype=torch.int32, device=selected.device)
    elements = selected.numel()
    block = block_of(
        current_facts(), streamed=8, local=24, maximum=max(next_power_of_two(elements), 32)
    )
    arguments = {
        "selected_ptr": selected.contiguous(),
        "rows_ptr": rows,
        "elements": elements,
        "programs": -(-elements // block),
    }
    constants = {
        "RANKS": ranks,
        "RANK": rank,
        "INTERLEAVE": interleave,
        "RANK_SHIFT": _shift(ranks),
        "INTERLEAVE_SHIFT": _shift(interleave),
        "BLOCK": block,
    }
    launch(_local_tokens_kernel, -(-elements // block), arguments, constants)
    return in_front(rows, places)


def _shift(divisor: int) -> int:
    """Logarithm of a power of two, -1 for any other divisor."""
    return -1 if divisor & (divisor - 1) else divisor.bit_length() - 1
