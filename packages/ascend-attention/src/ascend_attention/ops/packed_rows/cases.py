"""Inputs of the packed rows: strided slabs, padding rows, groups that hold no number."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.packed_rows.layout import packed_bytes

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64
NAN = float("nan")


def packed_slab(new: Inputs, blocks: int, page: int, width: int, rotary: int) -> torch.Tensor:
    """A cache of packed rows between other pages, filled with the bits of NaN."""
    size = packed_bytes(width, rotary)
    slab = new.full(255, blocks, page * size + 64, dtype=torch.uint8)
    return slab[:, 32 : 32 + page * size].unflatten(1, (page, size))


def _rows(
    new: Inputs,
    count: int,
    width: int,
    rotary: int,
    *,
    dtype: torch.dtype = F32,
    page: int = 8,
    blocks: int | None = None,
    padding: int = 0,
    index: torch.dtype = I64,
) -> tuple[Any, ...]:
    blocks = blocks or -(-count // page) + 1
    place = new.permutation(blocks * page, index)[:count]
    block = torch.div(place, page, rounding_mode="floor")
    gone = new.full(-1, padding, dtype=index)
    return (
        packed_slab(new, blocks, page, width, rotary),
        new.randn(count + padding, width, dtype=dtype, scale=4.0),
        torch.cat((block, gone)),
        torch.cat((place - block * page, gone)),
        rotary,
    )


def _special_rows(new: Inputs) -> tuple[Any, ...]:
    """Groups of zeros, with NaN, with infinity, of subnormals, at the edges of a power of two."""
    packed, rows, block, offset, rotary = _rows(new, 8, 144, 16)
    if new.device != "meta":
        rows[0, :64] = 0.0
        rows[1, 3] = NAN
        rows[2, 100] = float("inf")
        rows[3, :64] = 0.0
        rows[3, 1] = 1e-40
        rows[4, :64] = 3e38
        rows[5, :64] = 1e-37
        for row, edge in ((6, 448.0), (7, 448.0 + 2**-15)):
            rows[row, :64] = 0.0
            rows[row, 5] = edge
    return packed, rows, block, offset, rotary


def _views(new: Inputs) -> tuple[Any, ...]:
    """Rows of a wider projection that are not side by side; only an offset says padding."""
    packed, _, block, offset, rotary = _rows(new, 6, 66, 2)
    offset[3] = -1
    return packed, new.randn(6, 2 * 66)[:, ::2], block, offset, rotary


CASES: dict[str, tuple[Case, ...]] = {
    "quantize_kv_rows": (
        Case("no_rows", lambda new: _rows(new, 0, 64, 16)),
        Case("one", lambda new: _rows(new, 1, 2, 0, page=1)),
        Case("odd", lambda new: _rows(new, 7, 131, 65, dtype=F16)),
        Case("padded", lambda new: _rows(new, 5, 64, 16, dtype=BF16, padding=4, index=I32)),
        Case("all_padding", lambda new: _rows(new, 0, 24, 8, padding=3)),
        Case("short_group", lambda new: _rows(new, 9, 200, 6)),
        Case("special", _special_rows),
        Case("views", _views),
        Case("wide", lambda new: _rows(new, 2, 2048, 64)),
        Case("v4_rows", lambda new: _rows(new, 3, 512, 64, dtype=BF16, padding=1)),
        Case(
            "v4_window",
            lambda new: _rows(new, 4096, 512, 64, dtype=BF16, page=128, index=I32),
            large=True,
        ),
        Case(
            "v4_entries",
            lambda new: _rows(new, 1024, 512, 64, dtype=BF16, page=32, blocks=64),
            large=True,
        ),
        Case(
            "v4_c128_entries",
            lambda new: _rows(new, 33, 512, 64, dtype=BF16, page=1),
            large=True,
        ),
        Case("v4_float", lambda new: _rows(new, 64, 512, 64, page=128), large=True),
    ),
}
