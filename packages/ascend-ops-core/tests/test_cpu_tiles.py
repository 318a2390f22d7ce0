"""Tiles of products in explicit vectors, of sixteen lanes and of eight."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from ascend_ops_core.cpu_numeric import as_numpy
from ascend_ops_core.cpu_tiles import tiled_product
from ascend_ops_core.testing import assert_close


def check(tokens: int, rows: int, width: int, dtype: torch.dtype) -> None:
    """Rows and tokens from the middle, into the middle of a larger result."""
    generator = torch.Generator().manual_seed(tokens * rows + width)
    # Longer rows than the weight's; what lies beyond must not count.
    x = torch.randn(tokens + 3, width + 5, generator=generator)
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
@pytest.mark.parametrize("rows", [0, 1, 4, 7, 9])
def test_product(rows: int, width: int, dtype: torch.dtype) -> None:
    for tokens in (0, 1, 2, 3, 4, 7, 32, 33, 67):
        check(tokens, rows, width, dtype)


def test_product_without_avx512() -> None:
    program = (
        "import torch, test_cpu_tiles as t\n"
        "for tokens in (1, 2, 3, 7, 33):\n"
        "    for width in (7, 16, 50):\n"
        "        t.check(tokens, 9, width, torch.float32)\n"
        "assert t.tiled_product.signatures\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_CPU_NAME": "haswell", "PYTHONPATH": os.path.dirname(__file__)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
