"""Tiles of products in explicit vectors, of sixteen lanes and of eight."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from ascend_ops_core.cpu_numeric import as_numpy
from ascend_ops_core.cpu_tiles import (
    TILE_TOKENS,
    aligned_rows,
    lines_ahead,
    multiplies_bf16,
    rows_ahead,
    tile_bound,
    tile_product,
    tiled_product,
    token_rows,
)
from ascend_ops_core.testing import assert_close
from numba import njit


def check(
    tokens: int,
    rows: int,
    width: int,
    dtype: torch.dtype,
    token_dtype: torch.dtype = torch.float32,
) -> None:
    """Rows and tokens from the middle, into the middle of a larger result."""
    generator = torch.Generator().manual_seed(tokens * rows + width)
    # Longer rows than the weight's; what lies beyond must not count.
    x = torch.randn(tokens + 3, width + 5, generator=generator).to(token_dtype)
    weight = torch.randn(rows + 4, width, generator=generator).to(dtype)
    out = np.full((tokens + 1, rows + 3), -7, dtype=np.float32)
    tiled_product(as_numpy(x), 2, 2 + tokens, as_numpy(weight), 3, 3 + rows, out, 2)
    expected = x[2 : 2 + tokens, :width].double() @ weight[3 : 3 + rows].double().T
    assert_close(torch.from_numpy(out[:tokens, 2 : 2 + rows]).contiguous(), expected, scale=4)
    untouched = out.copy()
    untouched[:tokens, 2 : 2 + rows] = -7
    assert (untouched == -7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 15, 16, 17, 64])
@pytest.mark.parametrize("rows", [0, 1, 4, 7, 9, 21])
def test_product(rows: int, width: int, dtype: torch.dtype) -> None:
    for tokens in (0, 1, 2, 3, 4, 5, 6, 7, 32, 33, 67):
        check(tokens, rows, width, dtype)


def pairs_only(test: Callable[..., None]) -> Callable[..., None]:
    """Skip where kernels do not multiply bfloat16."""
    reason = "kernels here are compiled for a CPU that does not multiply bfloat16"
    marked: Callable[..., None] = pytest.mark.skipif(not multiplies_bf16(), reason=reason)(test)
    return marked


@pairs_only
@pytest.mark.parametrize("width", [1, 15, 31, 32, 33, 64, 95])
@pytest.mark.parametrize("rows", [0, 1, 4, 7, 9, 21])
def test_product_of_bf16_tokens(rows: int, width: int) -> None:
    for tokens in (0, 1, 2, 3, 4, 5, 6, 7, 32, 33, 67):
        check(tokens, rows, width, torch.bfloat16, torch.bfloat16)


@pairs_only
def test_products_of_bf16_are_summed_in_float32() -> None:
    # In bfloat16 256 + 1 is 256.
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    weight = torch.ones(1, 64, dtype=torch.bfloat16)
    weight[0, 0] = 256
    out = np.zeros((1, 1), dtype=np.float32)
    tiled_product(as_numpy(x), 0, 1, as_numpy(weight), 0, 1, out, 0)
    assert out[0, 0] == 256 + 63


@njit
def _rows_for(rows, width, w):  # type: ignore[no-untyped-def]
    return token_rows(rows, width, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [0, 1, 31, 32, 1024])
def test_rows_for_tokens(width: int, dtype: torch.dtype) -> None:
    rows = _rows_for(5, width, as_numpy(torch.zeros(2, 3, dtype=dtype)))
    pairs = dtype == torch.bfloat16 and multiplies_bf16()
    assert rows.dtype == (np.uint16 if pairs else np.float32)
    assert rows.shape[0] == 5
    assert rows.shape[1] > width
    assert {rows[i].ctypes.data % 64 for i in range(5)} == {0}
    with pytest.raises(NotImplementedError):
        token_rows(5, width, rows)


def test_product_without_avx512() -> None:
    program = (
        "import torch, test_cpu_columns as columns, test_cpu_tiles as t\n"
        "from numba.core.registry import cpu_target\n"
        "assert '+avx512f' not in cpu_target.target_context.codegen().magic_tuple()[2]\n"
        "assert not t.multiplies_bf16()\n"
        "for tokens in (1, 2, 3, 5, 7, 33):\n"
        "    for width in (7, 16, 50):\n"
        "        for dtype in (torch.float32, torch.bfloat16):\n"
        "            t.check(tokens, 13, width, dtype)\n"
        "        columns.check(2 * tokens, 13, width)\n"
        "assert t.tiled_product.signatures\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        # The name alone leaves the features of the CPU that runs this.
        env={
            **os.environ,
            "NUMBA_CPU_NAME": "haswell",
            "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,+bmi2",
            "PYTHONPATH": os.path.dirname(__file__),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("tokens", range(30))
def test_tiles_are_of_about_the_same_size(tokens: int) -> None:
    tiles = -(-tokens // TILE_TOKENS)
    bounds = [tile_bound(number, tokens) for number in range(tiles + 1)]
    sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] == tokens
    if tokens:
        assert max(sizes) <= TILE_TOKENS
        assert max(sizes) - min(sizes) <= 1
    # Later tiles have kernels from three tokens on.
    assert len(sizes) < 2 or min(sizes) >= 3


@pytest.mark.parametrize("width", [1, 15, 16, 1008])
def test_rows_start_at_cache_lines(width: int) -> None:
    rows = aligned_rows(5, width)
    assert rows.shape[0] == 5
    assert rows.shape[1] > width
    assert {rows[i].ctypes.data % 64 for i in range(5)} == {0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", range(1, TILE_TOKENS + 1))
def test_tokens_of_a_tile_lie_anywhere(count: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(9, 70, generator=generator)
    weight = torch.randn(40, 70, generator=generator).to(dtype)
    places = np.array([8, 3, 3, 0, 7, 1, 5], dtype=np.int64)
    expected = x[places[1 : 1 + count]].double() @ weight[8:31].double().T
    w = as_numpy(weight)
    # What is fetched may end behind the weight.
    ways = [rows_ahead(0), rows_ahead(38)]
    if count >= 3:
        ways += [lines_ahead(tile, 9, w, first, 23) for tile in (0, 8) for first in (0, 31)]
    for ahead in ways:
        out = np.zeros((count, 24), dtype=np.float32)
        tile_product(as_numpy(x), places, 1, count, w, 8, 31, ahead, out, 1)
        assert_close(torch.from_numpy(out[:, 1:]).contiguous(), expected, scale=4)
        assert (out[:, 0] == 0).all()
