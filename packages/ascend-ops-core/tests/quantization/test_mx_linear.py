"""Products of MXFP8 values against arithmetic in double precision, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.mx_linear import mxfp8_grouped_linear, npu
from ascend_ops_core.ops.quantization import mxfp8_quantize
from ascend_ops_core.testing import assert_close

FP8, U8 = torch.float8_e4m3fn, torch.uint8


def exact(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    powers = scale.view(torch.float8_e8m0fnu).double()
    return q.double() * powers.repeat_interleave(32, -1)


@pytest.mark.oracle("ascend_ops_core::mxfp8_grouped_linear", "double precision, group by group")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(0, 2, 3, 64), (1, 1, 1, 32), (5, 3, 65, 96), (64, 2, 7, 192)])
def test_equals_the_products_of_the_stored_values(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    tokens, groups, rows, inner = shape
    x, x_scale = mxfp8_quantize(torch.randn(tokens, groups, inner) * 3)
    weight, weight_scale = mxfp8_quantize(torch.randn(groups, rows, inner) / inner**0.5)
    got = mxfp8_grouped_linear(x, x_scale, weight, weight_scale, dtype)
    assert got.dtype == dtype
    wide, whole = exact(x, x_scale), exact(weight, weight_scale)
    expected = [wide[:, g] @ whole[g].T for g in range(groups)]
    assert_close(got, torch.stack(expected, 1), scale=8)


def test_quantising_costs_what_the_format_costs() -> None:
    """A value moves by 2^-4 of itself at most, of which random signs keep a small part."""
    torch.manual_seed(0)
    x, weight = torch.randn(32, 2, 512), torch.randn(2, 64, 512) / 512**0.5
    got = mxfp8_grouped_linear(*mxfp8_quantize(x), *mxfp8_quantize(weight), torch.float32)
    whole = torch.einsum("tgk,gnk->tgn", x.double(), weight.double())
    error = (got.double() - whole).square().mean().sqrt() / whole.square().mean().sqrt()
    assert 1e-3 < float(error) < 2**-4


def arguments(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "x": torch.empty(3, 2, 64, dtype=FP8),
        "x_scale": torch.empty(3, 2, 2, dtype=U8),
        "weight": torch.empty(2, 5, 64, dtype=FP8),
        "weight_scale": torch.empty(2, 5, 2, dtype=U8),
        "dtype": torch.bfloat16,
    }
    return given | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.empty(3, 2, 64)}, "x of torch.float32.*float8_e4m3fn"),
        ({"x": torch.empty(3, 2, 40, dtype=FP8)}, r"weight of shape \[2, 5, 64\].*\[2, any, 40\]"),
        ({"x_scale": torch.empty(3, 2, 1, dtype=U8)}, r"x_scale of shape.*\[3, 2, 2\]"),
        ({"weight_scale": torch.empty(2, 5, 2)}, "weight_scale of torch.float32.*uint8"),
        ({"weight": torch.empty(3, 5, 64, dtype=FP8)}, r"weight of shape \[3, 5, 64\]"),
        ({"dtype": torch.int8}, "int8"),
    ],
    ids=["dtype", "width", "blocks", "scale", "groups", "result"],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        mxfp8_grouped_linear(**arguments(**changes))


def test_a_row_is_whole_blocks() -> None:
    x = torch.empty(3, 2, 40, dtype=FP8)
    scale = torch.empty(3, 2, 2, dtype=U8)
    with pytest.raises(InvalidInputError, match="x of 40 columns: blocks of 32"):
        mxfp8_grouped_linear(x, scale, x.transpose(0, 1), scale.transpose(0, 1))


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("A2", {}, "documented for A5, not A2"),
        ("A3", {}, "documented for A5, not A3"),
        ("A5", {"x": torch.empty(3, 2, 32, dtype=FP8)}, "32 columns.*multiples of 64"),
        ("A5", {"dtype": torch.float32}, "gives float16 and bfloat16"),
        ("A5", {"x": torch.empty(0, 2, 64, dtype=FP8)}, "empty"),
        ("A5", {"weight": torch.empty(2, 64, 5, dtype=FP8).transpose(1, 2)}, "contiguous"),
        ("A5", {}, "^$"),
    ],
)
def test_limits_of_torch_npu(family: str, changes: dict[str, Any], reason: str) -> None:
    import re

    given = arguments(**changes)
    support = npu.supports_mxfp8_grouped_linear(facts_of(family), *given.values())
    assert re.search(reason, support.reason)
