"""Grouped products in every format, against transformers' dequantisation and row by row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.ops.grouped_mlp import (
    grouped_matmul,
    grouped_matmul_int32,
    grouped_matmul_quantized,
    grouped_matmul_swiglu_quant,
)
from ascend_fused_moe.ops.grouped_mlp.formats import TAKES_ROWS
from ascend_fused_moe.testing.quantized import quantized_weight
from ascend_ops_core import InvalidInputError
from ascend_ops_core.ops.quantization import (
    block_quantize,
    dynamic_quantize,
    mxfp4_quantize,
    mxfp8_quantize,
)
from ascend_ops_core.testing import assert_close
from torch.nn import functional as F

COUNTS = [[0, 0, 0], [1], [2, 0, 3], [0, 9, 0, 0], [1, 0, 17, 0, 45]]
KINDS = list(GroupListKind)


def groups_of(counts: list[int], kind: GroupListKind = GroupListKind.COUNTS) -> GroupList:
    """The same groups, said in one way or the other."""
    values = torch.tensor(counts)
    return GroupList(values if kind is GroupListKind.COUNTS else values.cumsum(0), kind)


def row_by_row(
    x: torch.Tensor, weight: torch.Tensor, counts: list[int], bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Each row times the weight of its group, in float64."""
    owners = [g for g, count in enumerate(counts) for _ in range(count)]
    rows = [weight[g].double() @ x[r].double() for r, g in enumerate(owners)]
    if bias is not None:
        rows = [row + bias[g].double() for row, g in zip(rows, owners, strict=True)]
    return torch.stack(rows) if rows else torch.empty(0, weight.shape[1]).double()


@pytest.mark.oracle("ascend_fused_moe::grouped_matmul", "row by row in the test")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_products(counts: list[int], kind: GroupListKind, dtype: torch.dtype) -> None:
    x = torch.randn(sum(counts), 19).to(dtype)
    weight = (torch.randn(len(counts), 7, 19) / 4).to(dtype)
    bias = torch.randn(len(counts), 7)
    actual = grouped_matmul(x, weight, groups_of(counts, kind))
    assert actual.dtype == dtype
    assert_close(actual, row_by_row(x, weight, counts), scale=4)
    actual = grouped_matmul(x, weight, groups_of(counts, kind), bias)
    assert_close(actual, row_by_row(x, weight, counts, bias), scale=4)


def test_a_group_without_rows_is_not_read() -> None:
    weight = torch.randn(3, 4, 5)
    weight[1] = float("nan")
    assert grouped_matmul(torch.randn(5, 5), weight, groups_of([2, 0, 3])).isfinite().all()


def as_transformers_reads(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 values that transformers' loader sees; it tells FP4 by int8."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    loader = Fp8Dequantize(SimpleNamespace())
    packed = values.view(torch.int8) if values.dtype == torch.uint8 else values
    read: torch.Tensor = loader._dequantize_one(packed, scale, output_dtype=torch.float32)
    return read


QUANTIZERS: dict[str, Any] = {
    "int8": dynamic_quantize,
    "fp8_block": block_quantize,
    "mxfp8": mxfp8_quantize,
    "mxfp4": mxfp4_quantize,
    "float": lambda x: (x, None),
}


def dequantized(values: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    if scale is None:
        return values
    if values.dtype == torch.int8:
        return values.float() * scale.unsqueeze(-1)
    if not scale.numel():
        return values.new_empty(0, 256, dtype=torch.float32)
    return as_transformers_reads(values, scale)


@pytest.mark.oracle(
    "ascend_fused_moe::grouped_matmul_quantized", "transformers' Fp8Dequantize, row by row"
)
@pytest.mark.parametrize("powers", [torch.float32, torch.uint8, torch.float8_e8m0fnu], ids=str)
@pytest.mark.parametrize(
    ("weights", "rows"),
    [(w, r) for w, taken in TAKES_ROWS.items() if w != "int4" for r in taken],
)
def test_quantized_products(weights: str, rows: str, powers: torch.dtype) -> None:
    """Every pair of formats and every dtype of stored scales."""
    counts = [2, 0, 3, 17]
    x = torch.randn(sum(counts), 256)
    plain = torch.randn(len(counts), 128, 256) / 16
    values, scale = quantized_weight(plain, weights, powers=powers != torch.float32)
    if powers == torch.float8_e8m0fnu and scale.dtype == torch.uint8:
        scale = scale.view(powers)
    if powers == torch.uint8 and weights == "int8":
        scale = scale.to(torch.bfloat16)
    kept, kept_scale = QUANTIZERS[rows](x)
    bias = torch.randn(len(counts), 128)
    actual = grouped_matmul_quantized(
        kept,
        kept_scale,
        values,
        scale,
        groups_of(counts),
        rows=rows,
        weights=weights,
        dtype=torch.float32,
        bias=bias,
    )
    weight = torch.stack(
        [
            dequantized(v, s)
            for v, s in zip(values, scale.float() if weights == "int8" else scale, strict=True)
        ]
    )
    assert_close(actual, row_by_row(dequantized(kept, kept_scale), weight, counts, bias), scale=8)


@pytest.mark.parametrize("group_size", [None, 2, 32])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_int4_products(group_size: int | None, kind: GroupListKind) -> None:
    counts = [2, 0, 3]
    x = torch.randn(5, 64)
    values, scale = quantized_weight(torch.randn(3, 6, 64) / 8, "int4", group_size=group_size)
    weight = torch.empty(3, 6, 64)
    for e, n, k in torch.cartesian_prod(torch.arange(3), torch.arange(6), torch.arange(64)):
        byte = int(values[e, n, k // 2])
        nibble = byte >> 4 if k % 2 else byte & 15
        signed = nibble - 16 if nibble > 7 else nibble
        factor = scale[e, n] if group_size is None else scale[e, n, k // group_size]
        weight[e, n, k] = signed * factor
    kept, kept_scale = dynamic_quantize(x)
    actual = grouped_matmul_quantized(
        kept,
        kept_scale,
        values,
        scale,
        groups_of(counts, kind),
        rows="int8",
        weights="int4",
        dtype=torch.float32,
    )
    assert_close(actual, row_by_row(kept.float() * kept_scale[:, None], weight, counts), scale=8)


@pytest.mark.oracle("ascend_fused_moe::grouped_matmul_int32", "row by row in the test")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_integer_sums_are_exact(counts: list[int], kind: GroupListKind) -> None:
    x = torch.randint(-128, 128, (sum(counts), 4096), dtype=torch.int8)
    x[:1] = -128
    weight = torch.randint(-128, 128, (len(counts), 3, 4096), dtype=torch.int8)
    weight[:, 0] = -128
    actual = grouped_matmul_int32(x, weight, groups_of(counts, kind))
    assert actual.dtype == torch.int32
    assert torch.equal(actual.double(), row_by_row(x, weight, counts))


@pytest.mark.oracle("ascend_fused_moe::grouped_matmul_swiglu_quant", "row by row in the test")
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_fused_product(counts: list[int]) -> None:
    rows = sum(counts)
    x, x_scale = dynamic_quantize(torch.randn(rows, 24))
    weight = torch.randint(-127, 128, (len(counts), 24, 10), dtype=torch.int8)
    scale = torch.rand(len(counts), 10) / 1000
    values, scales = grouped_matmul_swiglu_quant(x, x_scale, weight, scale, groups_of(counts))
    owners = torch.tensor([g for g, n in enumerate(counts) for _ in range(n)], dtype=torch.long)
    sums = row_by_row(x, weight.transpose(1, 2), counts)
    gate, up = (sums.float() * scale[owners] * x_scale[:, None]).chunk(2, -1)
    expected = F.silu(gate) * up
    assert_close(scales, expected.abs().amax(-1) / 127 if rows else scales)
    assert (values.float() * scales[:, None] - expected).abs().le(0.51 * scales[:, None]).all()


def test_counts_taken_for_running_sums_are_refused() -> None:
    """Bug case 4: the numbers of one kind, declared as the other."""
    x, weight = torch.randn(5, 4), torch.randn(3, 2, 4)
    with pytest.raises(InvalidInputError, match=r"9 rows, and there are 5"):
        grouped_matmul(x, weight, GroupList(torch.tensor([2, 2, 5]), GroupListKind.COUNTS))
    with pytest.raises(InvalidInputError, match=r"kind cumulative.*-2 rows"):
        grouped_matmul(x, weight, GroupList(torch.tensor([2, 0, 3]), GroupListKind.CUMULATIVE))
    with pytest.raises(InvalidInputError, match=r"2 values.*3 local experts"):
        grouped_matmul(x, weight, groups_of([2, 3]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": "int3"}, r"weights='int3' with rows='int8'.*int8 with int8"),
        ({"rows": "mxfp8"}, r"rows='mxfp8'"),
        ({"dtype": torch.int8}, r"dtype torch.int8.*float32, bfloat16"),
        ({"x_scale": None}, "int8 rows without a scale"),
        ({"x_scale": torch.rand(4)}, r"rows' scale.*\[4\].*float32 \[5\]"),
        ({"weight_scale": torch.rand(3, 3)}, r"weights' scale.*\[3, 3\].*\[3, 2\]"),
        ({"weight_scale": torch.rand(3, 2).half()}, "float16.*float32 or bfloat16"),
        ({"x": torch.randn(5, 4)}, r"rows of torch.float32.*int8 \[5, 4\]"),
        ({"bias": torch.randn(2, 2)}, r"bias of shape \[2, 2\].*\[3, 2\]"),
    ],
)
def test_bad_arguments(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "x": torch.zeros(5, 4, dtype=torch.int8),
        "x_scale": torch.rand(5),
        "weight": torch.zeros(3, 2, 4, dtype=torch.int8),
        "weight_scale": torch.rand(3, 2),
        "group_list": groups_of([2, 0, 3]),
        "rows": "int8",
        "weights": "int8",
        "dtype": torch.float32,
    }
    grouped_matmul_quantized(**given)
    with pytest.raises(InvalidInputError, match=message):
        grouped_matmul_quantized(**given | changed)


def test_blocks_that_do_not_fill_a_row_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"40 columns in mxfp8.*blocks of 32"):
        grouped_matmul_quantized(
            torch.zeros(5, 40).to(torch.float8_e4m3fn),
            torch.zeros(5, 2, dtype=torch.uint8),
            torch.zeros(1, 2, 40).to(torch.float8_e4m3fn),
            torch.zeros(1, 2, 1, dtype=torch.uint8),
            groups_of([5]),
            rows="mxfp8",
            weights="mxfp8",
            dtype=torch.float32,
        )
