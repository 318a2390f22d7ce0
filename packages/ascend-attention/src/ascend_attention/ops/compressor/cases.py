"""Inputs of the compressor."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64
NAN = float("nan")


def _projected(
    new: Inputs,
    tokens: int,
    hidden: int,
    ratio: int,
    series: int,
    dtype: torch.dtype = F32,
    index: torch.dtype = I64,
) -> tuple[Any, ...]:
    return (
        new.randn(tokens, hidden, dtype=dtype),
        new.randn(2 * series, hidden, dtype=dtype, scale=hidden**-0.5),
        new.randn(ratio, series),
        new.randint(0, 5 * ratio, tokens, dtype=index),
    )


def _windows(
    new: Inputs, entries: int, ratio: int, width: int, overlap: int, scale: float = 1.0
) -> tuple[Any, ...]:
    """Every third entry has no previous window, and NaN where that would be."""
    rows = new.randn(entries, overlap * ratio, 2 * overlap * width, scale=scale)
    first = new.full(0, entries, dtype=torch.bool)
    first[::3] = True
    if overlap == 2 and new.device != "meta":
        rows[::3, :ratio] = NAN
    return rows, first, overlap


def _strided_windows(new: Inputs) -> tuple[Any, ...]:
    rows, first, overlap = _windows(new, 4, 3, 13, 2)
    wide = torch.cat((rows, rows), dim=2).repeat(1, 2, 1)
    return wide[:, :6, :52], first, overlap


def _transposed_windows(new: Inputs) -> tuple[Any, ...]:
    rows, first, overlap = _windows(new, 2, 5, 9, 1)
    return rows.transpose(1, 2).contiguous().transpose(1, 2), first, overlap


def _extreme_gates(new: Inputs) -> tuple[Any, ...]:
    """Gates that decide alone, of both signs and beyond the range of exp, and one of -inf."""
    rows, first, _ = _windows(new, 3, 7, 33, 1)
    rows[:, :, 33:] *= 200.0
    rows[1, 2, 33:] = float("-inf")
    return rows, first, 1


def _paged(
    new: Inputs,
    entries: int,
    ratio: int,
    width: int,
    overlap: int,
    *,
    per_block: int,
    padding: int = 0,
    index: torch.dtype = I64,
    blocks: int | None = None,
) -> tuple[Any, ...]:
    """Windows at random rows of a slab whose other rows hold NaN; every third entry is a first."""
    rows = overlap * ratio
    blocks = blocks or -(-entries * rows // per_block) + 2
    values = 2 * overlap * width
    slab = new.full(NAN, blocks, per_block * values + 7)
    cache = slab[:, 7:].unflatten(1, (per_block, values))
    place = new.permutation(blocks * per_block, index)[: entries * rows].view(entries, rows)
    block = torch.div(place, per_block, rounding_mode="floor")
    offset = place - block * per_block
    first = new.full(0, entries + padding, dtype=torch.bool)
    first[::3] = True
    if new.device != "meta":
        cache[block.long(), offset.long()] = new.randn(entries, rows, values)
        if overlap == 2:
            # Rows in front of the first token are clamped to row 0 of the request.
            cache[block[::3, :ratio].long(), offset[::3, :ratio].long()] = NAN
    gone = new.full(-1, padding, rows, dtype=index)
    return cache, torch.cat((block, gone)), torch.cat((offset, gone)), first, overlap


def _missing_rows(new: Inputs) -> tuple[Any, ...]:
    """Single rows that do not exist, in either window, with offsets that mean nothing."""
    cache, block, offset, first, overlap = _paged(new, 5, 4, 65, 2, per_block=8)
    block[1, 5] = block[2, 0] = block[0, 7] = block[4, 1] = -1
    offset[1, 5] = 99
    return cache, block, offset, first, overlap


CASES: dict[str, tuple[Case, ...]] = {
    "project_states": (
        Case("no_tokens", lambda new: _projected(new, 0, 16, 4, 8)),
        Case("one", lambda new: _projected(new, 1, 1, 1, 1)),
        Case("odd", lambda new: _projected(new, 3, 19, 4, 65, index=I32)),
        Case("c128", lambda new: _projected(new, 63, 20, 128, 33, BF16)),
        Case("f16", lambda new: _projected(new, 17, 40, 4, 130, F16)),
        Case(
            "strided",
            lambda new: (
                new.randn(9, 64)[:, 3:35],
                new.randn(50, 32, scale=0.2),
                new.randn(4, 25),
                new.randint(0, 99, 18)[::2],
            ),
        ),
        Case("v4_flash_c4", lambda new: _projected(new, 4096, 4096, 4, 1024, BF16), large=True),
        Case("v4_flash_c128", lambda new: _projected(new, 256, 4096, 128, 512, BF16), large=True),
        Case("v4_pro_index", lambda new: _projected(new, 256, 7168, 4, 256, BF16), large=True),
    ),
    "compress_windows": (
        Case("no_entries", lambda new: _windows(new, 0, 4, 16, 2)),
        Case("one", lambda new: _windows(new, 1, 1, 1, 1)),
        Case("c4", lambda new: _windows(new, 7, 4, 65, 2)),
        Case("c128", lambda new: _windows(new, 3, 128, 33, 1, scale=3.0), scale=3.0),
        Case("ratio_3", lambda new: _windows(new, 4, 3, 63, 2)),
        Case("wide", lambda new: _windows(new, 2, 20, 1000, 1)),
        Case("strided", _strided_windows),
        Case("transposed", _transposed_windows),
        Case("extreme_gates", _extreme_gates),
        Case("v4_c4", lambda new: _windows(new, 1024, 4, 512, 2), large=True),
        Case("v4_c128", lambda new: _windows(new, 32, 128, 512, 1), large=True),
        Case("v4_index", lambda new: _windows(new, 64, 4, 128, 2), large=True),
    ),
    "compress_paged_windows": (
        Case("no_entries", lambda new: _paged(new, 0, 4, 16, 2, per_block=4)),
        Case("one", lambda new: _paged(new, 1, 1, 1, 1, per_block=1)),
        Case("c4", lambda new: _paged(new, 7, 4, 65, 2, per_block=4)),
        Case("c128", lambda new: _paged(new, 2, 128, 33, 1, per_block=8, index=I32)),
        Case("ratio_3", lambda new: _paged(new, 4, 3, 63, 2, per_block=5)),
        Case("padded", lambda new: _paged(new, 3, 4, 16, 2, per_block=8, padding=4, index=I32)),
        Case("all_padding", lambda new: _paged(new, 0, 4, 24, 2, per_block=2, padding=3)),
        Case("missing_rows", _missing_rows),
        Case("wide", lambda new: _paged(new, 2, 5, 1000, 1, per_block=3)),
        Case(
            "v4_c4",
            lambda new: _paged(new, 1024, 4, 512, 2, per_block=8, blocks=4096, padding=3),
            large=True,
        ),
        Case(
            "v4_c128",
            lambda new: _paged(new, 32, 128, 512, 1, per_block=32, blocks=4096),
            large=True,
        ),
        Case(
            "v4_index",
            lambda new: _paged(new, 64, 4, 128, 2, per_block=8, blocks=4096, index=I32),
            large=True,
        ),
    ),
}
