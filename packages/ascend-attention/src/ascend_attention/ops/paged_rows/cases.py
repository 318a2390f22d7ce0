"""Inputs of the row operators: strided views of a slab, as vLLM lays caches out."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def cache_in_slab(
    new: Inputs, blocks: int, rows: int, width: int, dtype: torch.dtype = F32, gap: int = 7
) -> torch.Tensor:
    """``[blocks, rows, width]`` out of blocks that hold ``gap`` more values on either side."""
    slab = new.randn(blocks, gap + rows * width + gap, dtype=dtype)
    return slab[:, gap : gap + rows * width].unflatten(1, (rows, width))


def _places(
    new: Inputs, count: int, blocks: int, rows: int, padding: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Different rows of a cache, every third of the first ``3 * padding`` being padding."""
    number = new.permutation(blocks * rows)[:count]
    block = (number // rows).to(dtype)
    offset = (number % rows).to(dtype)
    block[: 3 * padding : 3] = -1
    offset[1 : 3 * padding : 3] = -1
    return block, offset


def _write(
    new: Inputs,
    count: int,
    width: int,
    cache_dtype: torch.dtype = F32,
    dtype: torch.dtype = F32,
    *,
    blocks: int = 6,
    rows: int = 4,
    padding: int = 0,
    index: torch.dtype = I64,
) -> tuple[Any, ...]:
    return (
        cache_in_slab(new, blocks, rows, width, cache_dtype),
        new.randn(count, width, dtype=dtype),
        *_places(new, count, blocks, rows, padding, index),
    )


def _views(new: Inputs) -> tuple[Any, ...]:
    """Rows cut out of a fused projection."""
    cache, _, block, offset = _write(new, 9, 65, BF16)
    return cache, new.randn(9, 200, dtype=BF16)[:, 77:142], block, offset


def _gather(
    new: Inputs,
    shape: tuple[int, ...],
    width: int,
    dtype: torch.dtype = F32,
    *,
    blocks: int = 6,
    rows: int = 4,
    padded: bool = False,
    index: torch.dtype = I64,
) -> tuple[Any, ...]:
    low = -1 if padded else 0
    return (
        cache_in_slab(new, blocks, rows, width, dtype),
        new.randint(low, blocks, *shape, dtype=index),
        new.randint(low, rows, *shape, dtype=index),
    )


def _poisoned(new: Inputs) -> tuple[Any, ...]:
    """Padding beside NaN: what is not to be read has no value."""
    cache, block, offset = _gather(new, (3, 5), 65, padded=True)
    cache[0] = float("nan")
    cache[-1] = float("nan")
    if new.device != "meta":
        block[block == 0] = -1
        block[block == 5] = -2
    return cache, block, offset


def _locate(
    new: Inputs,
    requests: int,
    blocks: int,
    shape: tuple[int, ...],
    rows_per_block: int,
    *,
    table: torch.dtype = I32,
    index: torch.dtype = I64,
    wide: int = 0,
) -> tuple[Any, ...]:
    numbers = new.permutation(requests * (blocks + wide), table).view(requests, blocks + wide)
    lines = shape if len(shape) == 1 else (*shape[:1], 1)
    return (
        numbers[:, :blocks],
        new.randint(0, max(requests, 1), *lines, dtype=index),
        new.randint(0, blocks * rows_per_block, *shape, dtype=index),
        rows_per_block,
    )


def _at_borders(new: Inputs) -> tuple[Any, ...]:
    """First and last rows of blocks whose size has no exact inverse in float32."""
    table, request, _, _ = _locate(new, 2, 9, (2, 18), 61)
    first = torch.arange(9, device=new.device) * 61
    return table, request, torch.cat((first, first + 60)).repeat(2, 1), 61


CASES: dict[str, tuple[Case, ...]] = {
    "locate_rows": (
        Case("no_rows", lambda new: _locate(new, 2, 3, (0,), 4)),
        Case("no_tokens", lambda new: _locate(new, 2, 3, (0, 5), 4)),
        Case("no_columns", lambda new: _locate(new, 2, 3, (3, 0), 4)),
        Case("one", lambda new: _locate(new, 1, 1, (1,), 1)),
        Case("list", lambda new: _locate(new, 3, 7, (17,), 8)),
        Case("table", lambda new: _locate(new, 3, 65, (5, 63), 3, table=I64, index=I32)),
        Case("at_borders", _at_borders),
        Case("cut_table", lambda new: _locate(new, 2, 33, (3, 65), 64, wide=7)),
        Case("long_table", lambda new: _locate(new, 1, 5000, (1, 1000), 3)),
        Case(
            "v4_top_k_of_decode",
            lambda new: _locate(new, 64, 8192, (64, 512), 32),
            large=True,
        ),
        Case("v4_window", lambda new: _locate(new, 8, 2048, (4096, 128), 64), large=True),
        Case("v4_c128", lambda new: _locate(new, 4, 4096, (16, 8192), 2), large=True),
        Case("v4_slots", lambda new: _locate(new, 64, 4096, (64,), 64), large=True),
    ),
    "gather_rows": (
        Case("no_rows", lambda new: _gather(new, (0,), 8)),
        Case("one", lambda new: _gather(new, (1,), 1, blocks=1, rows=1)),
        Case("odd", lambda new: _gather(new, (3, 7), 65, F16, index=I32)),
        Case("padded", lambda new: _gather(new, (17,), 63, BF16, padded=True)),
        Case("poisoned", _poisoned),
        Case("wide", lambda new: _gather(new, (3,), 40000, blocks=2, rows=2)),
        Case(
            "eight_bits",
            lambda new: (
                cache_in_slab(new, 4, 3, 33).to(torch.float8_e4m3fn),
                *_gather(new, (5,), 1, blocks=4, rows=3, padded=True)[1:],
            ),
        ),
        Case(
            "v4_c4_states",
            lambda new: _gather(new, (256, 8), 2048, blocks=2048, rows=8),
            large=True,
        ),
        Case(
            "v4_c128_states",
            lambda new: _gather(new, (32, 128), 1024, blocks=2048, rows=32),
            large=True,
        ),
        Case(
            "v4_entries",
            lambda new: _gather(new, (64, 512), 512, BF16, blocks=512, rows=32, padded=True),
            large=True,
        ),
    ),
    "write_rows": (
        Case("no_rows", lambda new: _write(new, 0, 8)),
        Case("one", lambda new: _write(new, 1, 1, blocks=1, rows=1)),
        Case("odd", lambda new: _write(new, 9, 65, F16, index=I32)),
        Case("padded", lambda new: _write(new, 17, 63, BF16, BF16, padding=4)),
        Case(
            "all_padding", lambda new: (*_write(new, 3, 8)[:2], *[new.full(-1, 3, dtype=I64)] * 2)
        ),
        Case("full", lambda new: _write(new, 24, 33, padding=1)),
        Case("views", _views),
        Case("wide", lambda new: _write(new, 3, 40000, BF16, F32, blocks=2, rows=2)),
        Case(
            "v4_window",
            lambda new: _write(new, 4096, 512, BF16, BF16, blocks=512, rows=128, padding=9),
            large=True,
        ),
        Case(
            "v4_c4_states",
            lambda new: _write(new, 4096, 2048, blocks=2048, rows=8),
            large=True,
        ),
        Case(
            "v4_c128_entries",
            lambda new: _write(new, 33, 512, BF16, BF16, blocks=2048, rows=1, index=I32),
            large=True,
        ),
    ),
}
