"""The building blocks of the kernels against torch, value by value."""

from __future__ import annotations

import pytest

pytest.importorskip("numba")

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, exp_f32, narrow, widen
from numba import njit


@njit(fastmath=FASTMATH)
def exponentials(x, out):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        out[i] = exp_f32(x[i])


@njit(fastmath=FASTMATH)
def doubled(x, out):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        out[i] = narrow(out, widen(x[i]) * np.float32(2))


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = torch.linspace(-86.9, 87.9, 100_003)
    out = torch.empty_like(x)
    exponentials(as_numpy(x), as_numpy(out))
    expected = x.double().exp()
    assert float(((out.double() - expected) / expected).abs().max()) < 2 * 2**-23


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.0, 1.0),
        (-0.0, 1.0),
        (-1e30, 0.0),
        (-float("inf"), 0.0),
        (1e30, float("inf")),
        (float("inf"), float("inf")),
        (float("nan"), float("nan")),
    ],
)
def test_exp_at_its_ends(x: float, expected: float) -> None:
    out = torch.empty(9)
    exponentials(as_numpy(torch.full((9,), x)), as_numpy(out))
    assert torch.equal(out.nan_to_num(nan=7), torch.full((9,), expected).nan_to_num(nan=7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_body_reads_and_writes_both_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(67).to(dtype)
    x[3] = float("nan")
    out = torch.empty_like(x)
    doubled(as_numpy(x), as_numpy(out))
    assert torch.equal(out.nan_to_num(nan=7), (x * 2).nan_to_num(nan=7))
