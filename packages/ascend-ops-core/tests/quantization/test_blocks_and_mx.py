"""Quantisation of blocks and microscaling against arithmetic in Python."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization import (
    block_dequantize,
    block_quantize,
    formats,
    fp4_pack,
    fp4_unpack,
    mxfp4_dequantize,
    mxfp4_quantize,
    mxfp8_dequantize,
    mxfp8_quantize,
)
from ascend_ops_core.ops.quantization.blocks import npu as blocks_npu
from ascend_ops_core.ops.quantization.mx import npu as mx_npu

FP8 = torch.float8_e4m3fn
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e2m1_code(value: float) -> int:
    """Nearest code by search, halves to the even code."""
    size = min(abs(value), 6.0)
    code = min(range(8), key=lambda c: (abs(size - E2M1[c]), c % 2))
    return code | (8 if math.copysign(1.0, value) < 0 else 0)


def test_all_codes_of_e2m1_and_e8m0() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    wanted = [*E2M1, *(-v for v in E2M1)]
    assert formats.e2m1_values(codes).tolist() == wanted
    assert torch.equal(formats.e2m1_codes(torch.tensor(wanted)), codes)
    powers = torch.arange(256, dtype=torch.uint8)
    values = formats.e8m0_values(powers)
    assert torch.equal(values[:255], powers[:255].view(torch.float8_e8m0fnu).float())
    assert values[255].isnan()
    middles = [(a + b) / 2 for a, b in itertools.pairwise(E2M1)]
    around = [m * f for m in middles for f in (0.999, 1.0, 1.001, -0.999, -1.0, -1.001)]
    got = formats.e2m1_codes(torch.tensor(around, dtype=torch.float64).float())
    assert got.tolist() == [e2m1_code(v) for v in torch.tensor(around).tolist()]


@pytest.mark.oracle("ascend_ops_core::block_quantize", "DeepSeek's act_quant, block by block")
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("powers", [True, False])
@pytest.mark.parametrize("shape", [(0, 128), (1, 1), (3, 128), (130, 257)])
def test_block_quantize_equals_deepseek(shape: tuple[int, int], powers: bool, rows: int) -> None:
    torch.manual_seed(0)
    x = 5 * torch.randn(shape)
    scale_dtype = torch.uint8 if powers else torch.float32
    q, scale = block_quantize(x, rows=rows, scale_dtype=scale_dtype, min_magnitude=1e-4)
    for top in range(0, shape[0], rows):
        for left in range(0, shape[1], 128):
            block = x[top : top + rows, left : left + 128]
            s = max(float(block.abs().max()), 1e-4) / 448
            if powers:
                s = 2.0 ** math.ceil(math.log2(s))
                assert int(scale[top // rows, left // 128]) == math.log2(s) + 127
            else:
                assert scale[top // rows, left // 128] == pytest.approx(s, rel=1e-6)
                s = float(scale[top // rows, left // 128])
            wanted = (block / s).clamp(-448, 448).to(FP8).float()
            assert torch.equal(q[top : top + rows, left : left + 128].float(), wanted)


@pytest.mark.oracle("ascend_ops_core::block_dequantize", "torch's float8 casts, block by block")
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("powers", [True, False])
def test_block_dequantize(powers: bool, rows: int) -> None:
    q = torch.randint(0, 256, (130, 200), dtype=torch.uint8).view(FP8)
    shape = (130 if rows == 1 else 2, 2)
    scale = torch.randint(100, 140, shape, dtype=torch.uint8) if powers else torch.rand(shape)
    given = scale.view(torch.float8_e8m0fnu) if powers else scale
    got = block_dequantize(q, given, torch.float32, rows=rows)
    for i in range(130):
        for left in (0, 128):
            s = float(given[i // rows, left // 128].float())
            wanted = q[i, left : left + 128].float() * s
            assert torch.equal(got[i, left : left + 128].nan_to_num(), wanted.nan_to_num())


def test_an_exact_power_of_two_is_its_own_scale() -> None:
    x = torch.zeros(2, 128)
    x[:, 0] = torch.tensor([448.0 * 8, math.nextafter(448.0 * 8, math.inf)])
    x[1, 0] = 448.0 * 8 + 2**-11
    _, scale = block_quantize(x, scale_dtype=torch.uint8)
    assert scale.flatten().tolist() == [130, 131]


def test_blocks_of_zeros_and_blocks_that_are_not_finite() -> None:
    x = torch.ones(3, 128)
    x[0] = 0
    x[1, 5] = math.nan
    x[2, 5] = math.inf
    q, scale = block_quantize(x, scale_dtype=torch.uint8)
    assert scale.flatten().tolist() == [0, 255, 255]
    assert (q.float() == 0).all()
    back = block_dequantize(q, scale)
    assert (back[0] == 0).all()
    assert back[1:].isnan().all()
    for quantize, dequantize in (
        (mxfp8_quantize, mxfp8_dequantize),
        (mxfp4_quantize, mxfp4_dequantize),
    ):
        q, scale = quantize(x)
        assert scale.tolist()[0] == [0, 0, 0, 0]
        back = dequantize(q, scale)
        assert back[1:, :32].isnan().all()
        assert (back[1:, 32:] == 1).all()


@pytest.mark.oracle("ascend_ops_core::mxfp4_quantize", "OCP MX v1.0 section 6.3 by brute force")
@pytest.mark.oracle("ascend_ops_core::mxfp8_quantize", "OCP MX v1.0 section 6.3 by brute force")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
def test_mx_quantize_equals_the_standard(tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    x = (torch.randn(tokens, 64) * 10 ** torch.randn(tokens, 1)).to(dtype)
    q8, scale8 = mxfp8_quantize(x)
    q4, scale4 = mxfp4_quantize(x)
    codes = fp4_unpack(q4)
    for i in range(tokens):
        for b in range(2):
            block = x[i, 32 * b : 32 * b + 32].float()
            exponent = math.floor(math.log2(float(block.abs().max())))
            assert int(scale8[i, b]) == exponent - 8 + 127
            assert int(scale4[i, b]) == exponent - 2 + 127
            wanted = (block / 2.0 ** (exponent - 8)).clamp(-448, 448).to(FP8)
            assert torch.equal(q8[i, 32 * b : 32 * b + 32].float(), wanted.float())
            values = [e2m1_code(v / 2.0 ** (exponent - 2)) for v in block.tolist()]
            assert codes[i, 32 * b : 32 * b + 32].tolist() == values


@pytest.mark.oracle("ascend_ops_core::mxfp8_dequantize", "torch's float8 dtypes")
def test_mxfp8_dequantize_equals_torch() -> None:
    q = torch.arange(256, dtype=torch.uint8).view(2, 128).view(FP8)
    scale = torch.tensor([[0, 1, 127, 255], [100, 128, 200, 245]], dtype=torch.uint8)
    wanted = q.float() * scale.view(torch.float8_e8m0fnu).float().repeat_interleave(32, 1)
    got = mxfp8_dequantize(q, scale.view(torch.float8_e8m0fnu), torch.float32)
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


@pytest.mark.oracle("ascend_ops_core::mxfp4_dequantize", "the table of the 16 code points")
def test_mxfp4_dequantize_equals_the_table() -> None:
    packed = torch.arange(256, dtype=torch.uint8)[None]
    scale = torch.arange(110, 126, dtype=torch.uint8)[None]
    table = [*E2M1, *(-v for v in E2M1)]
    values = [table[nibble] for byte in range(256) for nibble in (byte & 15, byte >> 4)]
    wanted = [v * 2.0 ** (110 + i // 32 - 127) for i, v in enumerate(values)]
    assert mxfp4_dequantize(packed, scale, torch.float32)[0].tolist() == wanted


@pytest.mark.oracle("ascend_ops_core::fp4_pack", "every pair of codes")
@pytest.mark.oracle("ascend_ops_core::fp4_unpack", "every pair of codes")
def test_pack_and_unpack_every_pair() -> None:
    codes = torch.tensor(
        [[low, high] for high in range(16) for low in range(16)], dtype=torch.uint8
    )
    packed = fp4_pack(codes)
    assert packed.flatten().tolist() == list(range(256))
    assert torch.equal(fp4_unpack(packed), codes)


ROW = torch.ones(2, 64)
BYTES = torch.zeros(2, 64, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda: block_quantize(ROW, rows=64), "1 or 128 rows"),
        (lambda: block_quantize(ROW[None], rows=128), "tile a matrix"),
        (lambda: block_quantize(ROW, torch.uint8), "float8_e4m3fn"),
        (lambda: block_quantize(ROW, scale_dtype=torch.int8), "powers of two"),
        (lambda: block_quantize(ROW, min_magnitude=-1.0), "at least 0"),
        (lambda: block_quantize(ROW[:, :0]), "at least 1 column"),
        (lambda: block_dequantize(ROW, ROW), "float8_e4m3fn or int8"),
        (lambda: block_dequantize(BYTES.view(torch.int8), ROW), r"shape \(2, 1\)"),
        (lambda: block_dequantize(BYTES.view(torch.int8), ROW[:, :1], torch.int8), "bfloat16"),
        (lambda: mxfp8_quantize(ROW[:, :33]), "blocks of 32"),
        (lambda: mxfp4_quantize(BYTES), "float32, bfloat16"),
        (lambda: mxfp8_dequantize(BYTES, BYTES), "it is torch.float8"),
        (lambda: mxfp4_dequantize(BYTES, BYTES), r"shape \(2, 4\)"),
        (lambda: mxfp4_dequantize(BYTES, BYTES[:, :4], torch.int8), "values become float32"),
        (lambda: fp4_pack(BYTES[:, :3]), "two codes"),
        (lambda: fp4_unpack(ROW), "uint8"),
    ],
)
def test_refusals(call: object, limit: str) -> None:
    with pytest.raises(InvalidInputError, match=limit):
        call()  # type: ignore[operator]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("family", "arguments", "reason"),
    [
        ("A2", (meta(2, 128), torch.int8, 1, torch.float32, 0.0), ""),
        ("A5", (meta(2, 128), torch.int8, 1, torch.float32, 0.0), "not A5"),
        ("A3", (meta(2, 128), FP8, 1, torch.float32, 0.0), "gives int8"),
        ("A2", (meta(2, 128), torch.int8, 128, torch.float32, 0.0), "has 1"),
        ("A2", (meta(2, 128), torch.int8, 1, torch.uint8, 0.0), "gives float32"),
        ("A2", (meta(2, 128), torch.int8, 1, torch.float32, 1.0), "min_magnitude"),
        ("A2", (meta(2, 9, dtype=torch.float32), torch.int8, 1, torch.float32, 0.0), "float16"),
        ("A2", (meta(9), torch.int8, 1, torch.float32, 0.0), "2 or 3"),
        ("A2", (meta(0, 9), torch.int8, 1, torch.float32, 0.0), "empty"),
    ],
)
def test_limits_of_npu_dynamic_block_quant(
    family: str,
    arguments: tuple,  # type: ignore[type-arg]
    reason: str,
) -> None:
    support = blocks_npu.supports_block_quantize(facts_of(family), *arguments)
    assert (reason in support.reason) if reason else bool(support)


def test_limits_of_microscaling() -> None:
    a2, a5 = facts_of("A2"), facts_of("A5")
    for limits in (mx_npu.supports_mxfp4_quantize, mx_npu.supports_mxfp8_quantize):
        assert limits(a5, meta(2, 64))
        assert "not A2" in limits(a2, meta(2, 64)).reason
        assert "at most 7" in limits(a5, meta(1, 1, 1, 1, 1, 1, 2, 64)).reason
        assert "empty" in limits(a5, meta(0, 64)).reason
        assert "float16" in limits(a5, meta(2, 64, dtype=torch.int8)).reason
    assert "float8" in mx_npu.supports_mxfp8_quantize_triton(a2, meta(2, 64)).reason
    assert "32 bytes" in mx_npu.supports_fp4_pack_triton(a2, meta(2, 64)).reason
    assert mx_npu.supports_fp4_pack_triton(a5, meta(2, 64))
