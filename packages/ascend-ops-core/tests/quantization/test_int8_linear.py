"""Products of int8 against exact sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.cases import cases_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.int8_linear import int8_linear
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

CASES = [one for one in cases_of(find("ascend_ops_core::int8_linear")) if not one.large]


@pytest.mark.oracle("ascend_ops_core::int8_linear", "sums of Python's integers")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_exact_sums(case: Any) -> None:
    x, x_scale, weight, weight_scale, dtype = case.arguments()
    rows, columns = x.tolist(), weight.tolist()
    sums = [[sum(a * b for a, b in zip(r, c, strict=True)) for c in columns] for r in rows]
    exact = torch.tensor(sums, dtype=torch.float64).view(len(rows), len(columns))
    expected = exact * x_scale.double()[:, None] * weight_scale.double()
    got = int8_linear(x, x_scale, weight, weight_scale, dtype)
    assert got.dtype == dtype
    assert_close(got, expected, scale=case.scale)


def test_scales_and_sizes_are_checked() -> None:
    x, w = torch.zeros(2, 8, dtype=torch.int8), torch.zeros(3, 8, dtype=torch.int8)
    with pytest.raises(InvalidInputError, match="x_scale"):
        int8_linear(x, torch.ones(3), w, torch.ones(3))
    with pytest.raises(InvalidInputError, match="float32"):
        int8_linear(x, torch.ones(2).half(), w, torch.ones(3))
    wide = torch.zeros(1, 131073, dtype=torch.int8)
    with pytest.raises(InvalidInputError, match="131073"):
        int8_linear(wide, torch.ones(1), wide, torch.ones(1))
