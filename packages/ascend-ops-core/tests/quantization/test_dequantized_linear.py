"""Products with quantised weights, against values worked out one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.cases import cases_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.dequantized_linear import cpu, dequantized_linear, reference
from ascend_ops_core.quantized_weights.formats import Codes
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

CASES = [one for one in cases_of(find("ascend_ops_core::dequantized_linear")) if not one.large]


def value_of(code: int, codes: Codes) -> float:
    """What a code stands for, from the definition of its format."""
    if codes is Codes.INT8:
        return float(code - 256 if code > 127 else code)
    if codes is Codes.INT4:
        return float(code - 16 if code > 7 else code)
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if codes is Codes.E4M3 else (2, 1, 1)
    size = code & ((1 << (exponent_bits + mantissa_bits)) - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = size >> mantissa_bits, size & ((1 << mantissa_bits) - 1)
    if codes is Codes.E4M3 and size == 0x7F:
        return float("nan")
    part = mantissa / (1 << mantissa_bits)
    return sign * (
        part * 2.0 ** (1 - bias) if exponent == 0 else (1 + part) * 2.0 ** (exponent - bias)
    )


def brute_force(weight, scale, scale_rows, columns, first, codes: Codes) -> torch.Tensor:
    """The weight in float64, element by element."""
    raw = weight.view(torch.uint8)
    if codes.per_byte == 2:
        raw = torch.stack((raw & 15, raw >> 4), -1).flatten(-2)
    table = torch.tensor(
        [value_of(code, codes) for code in range(256 // 16 ** (codes.per_byte - 1))]
    )
    values = table.double()[raw.long()]
    out = torch.empty_like(values)
    for n in range(values.shape[0]):
        row = n if scale_rows is None else int(scale_rows[n])
        for k in range(values.shape[1]):
            one = scale[row, (k + first) // columns if columns else 0]
            if scale.dtype == torch.uint8:
                factor = float("nan") if one == 255 else 2.0 ** (int(one) - 127)
            else:
                factor = float(one)
            out[n, k] = values[n, k] * factor
    return out


@pytest.mark.oracle(
    "ascend_ops_core::dequantized_linear", "every element from its format's definition"
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_brute_force(case: Any) -> None:
    x, weight, scale, scale_rows, columns, first, codes = case.arguments()
    expected = x.double() @ brute_force(weight, scale, scale_rows, columns, first, Codes(codes)).T
    bar = {"scale": case.scale}
    got = dequantized_linear(
        x, weight, scale, Codes(codes), columns=columns, scale_rows=scale_rows, first_column=first
    )
    assert got.dtype == x.dtype
    assert_close(got, expected.to(x.dtype), **bar)
    assert_close(reference.dequantized_linear(*case.arguments()), expected.to(x.dtype), **bar)


@pytest.mark.parametrize("codes", list(Codes), ids=lambda one: one.value)
def test_every_code_is_exact(codes: Codes) -> None:
    """The kernel's arithmetic gives every code's value, NaN included."""
    count = 16 if codes.per_byte == 2 else 256
    raw = torch.arange(count, dtype=torch.uint8)
    if codes.per_byte == 2:
        weight = (raw | raw.flip(0) << 4)[None]
        numbers = torch.stack((raw, raw.flip(0)), -1).flatten()
    else:
        weight, numbers = raw.view(codes.dtype)[None], raw
    expected = torch.tensor([value_of(int(code), codes) for code in numbers])
    width = expected.shape[0]
    scale = torch.ones(1, 1)
    tile = torch.empty(1, width)
    cpu.dequantize_rows(
        weight.view(torch.uint8).numpy(), cpu.KINDS[codes.value], scale.numpy(),
        cpu.row_map(None), 0, 0, 0, 1, tile.numpy(),
    )  # fmt: skip
    torch.testing.assert_close(tile[0], expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        reference.dequantized(weight, scale, 0, 0, codes.value)[0], expected,
        rtol=0, atol=0, equal_nan=True,
    )  # fmt: skip


def test_nan_scale_makes_its_block_nan() -> None:
    weight = torch.ones(2, 64).to(torch.float8_e4m3fn)
    scale = torch.full((2, 2), 127, dtype=torch.uint8)
    scale[1, 1] = 255
    got = dequantized_linear(torch.ones(1, 64), weight, scale, Codes.E4M3, columns=32)
    assert got[0, 0] == 64
    assert got[0, 1].isnan()


@pytest.mark.parametrize("code", [0, 1, 254])
def test_extreme_powers_are_exact(code: int) -> None:
    weight = torch.tensor([[0.0, 0.5]]).to(torch.float8_e4m3fn)
    scale = torch.full((1, 1), code, dtype=torch.uint8)
    got = dequantized_linear(torch.tensor([[0.0, 1.0]]), weight, scale, Codes.E4M3, columns=0)
    assert got.item() == 0.5 * 2.0 ** (code - 127)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": 16}, "scale"),
        ({"first_column": 128}, "first_column=128"),
        ({"scale_rows": torch.zeros(3, dtype=torch.int64)}, "int32"),
        ({"codes": Codes.INT8}, "torch.float8_e4m3fn"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    given = {
        "codes": Codes.E4M3,
        "columns": 128,
        "scale_rows": torch.zeros(3, dtype=torch.int32),
        "first_column": 0,
    } | change
    codes = given.pop("codes")
    weight = torch.zeros(3, 128).to(torch.float8_e4m3fn)
    with pytest.raises(InvalidInputError, match=message):
        dequantized_linear(torch.zeros(1, 128), weight, torch.ones(1, 1), codes, **given)
