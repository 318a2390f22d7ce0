"""The grouped convolution against loops over rows, channels and taps in Python."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.ops.grouped_convolution import grouped_convolution

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.oracle("ascend_specdec::grouped_convolution", "loops in Python, in float64")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    ("blocks", "block", "width", "groups", "taps"),
    [(0, 4, 6, 2, 3), (1, 1, 1, 1, 1), (3, 4, 6, 2, 3), (2, 2, 4, 4, 5), (2, 5, 6, 1, 2)],
)
def test_equals_loops(
    blocks: int, block: int, width: int, groups: int, taps: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(taps)
    rows = blocks * block
    x = torch.randn(rows, width).to(dtype)
    base = torch.randn(2, taps, width).to(dtype)
    delta = torch.randn(rows, 2, taps, groups).to(dtype)
    for side in (0, 1):
        got = grouped_convolution(x, base, delta, side, block)
        assert got.dtype == dtype
        assert got.shape == x.shape
        for t in range(rows):
            for c in range(width):
                total = 0.0
                for j in range(min(taps, t % block + 1)):
                    weight = float(base[side, j, c]) + float(
                        delta[t, side, j, c // (width // groups)]
                    )
                    total += weight * float(x[t - j, c])
                assert float(got[t, c]) == pytest.approx(
                    total, rel=TOLERANCES[dtype], abs=TOLERANCES[dtype]
                )


def test_blocks_do_not_reach_into_each_other() -> None:
    torch.manual_seed(0)
    x, base = torch.randn(6, 4), torch.randn(2, 3, 4)
    delta = torch.randn(6, 2, 3, 2)
    together = grouped_convolution(x, base, delta, 0, 3)
    apart = [grouped_convolution(x[i : i + 3], base, delta[i : i + 3], 0, 3) for i in (0, 3)]
    assert torch.equal(together, torch.cat(apart))


@pytest.mark.parametrize(
    ("rows", "groups", "side", "named"),
    [(5, 2, 0, "5 rows in blocks of 3"), (6, 3, 0, "3 groups of 4"), (6, 2, 2, "side=2")],
)
def test_bad_input_is_refused(rows: int, groups: int, side: int, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        grouped_convolution(
            torch.zeros(rows, 4), torch.zeros(2, 1, 4), torch.zeros(rows, 2, 1, groups), side, 3
        )
