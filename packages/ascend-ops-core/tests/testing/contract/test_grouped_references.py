"""The references of torch_npu's grouped products against brute force, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import Contract
from torch.nn import functional as F

pytestmark = pytest.mark.contract

BF16, F16, F32, I8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
COUNTS = [2, 0, 3]
OWNERS = [0, 0, 2, 2, 2]
E8M0, E2M1 = 293, 296


@pytest.fixture(autouse=True)
def _on_cpu(contract: Contract) -> None:
    """Calls of torch.ops.npu on CPU tensors run the references."""


def grouped(
    x: torch.Tensor, weight: torch.Tensor, family: str = "A2", **options: Any
) -> torch.Tensor:
    with device_family(family):
        (out,) = torch.ops.npu.npu_grouped_matmul(
            [x],
            [weight.transpose(1, 2)],
            group_list=torch.tensor(COUNTS),
            split_item=2,
            group_type=0,
            group_list_type=1,
            **options,
        )
    return out


def int8() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(-128, 128, (5, 300), dtype=I8)
    return x, torch.randint(-128, 128, (3, 4, 300), dtype=I8)


def by_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.stack(
        [weight[g].double() @ row.double() for g, row in zip(OWNERS, x, strict=True)]
    )


def test_int8() -> None:
    x, weight = int8()
    sums = by_rows(x, weight)
    assert torch.equal(grouped(x, weight, output_dtype=3).double(), sums)
    # Sums of 300 products of bytes pass 1e5, and float16 ends at 65504.
    scale, rows = torch.rand(3, 4) / 64, torch.rand(5)
    for dtype, code, family in ((BF16, 15, "A2"), (F32, 5, "A2"), (F32, 15, "A5")):
        out = grouped(
            x,
            weight,
            family,
            scale=[scale.to(dtype)],
            per_token_scale=[rows],
            output_dtype=code,
        )
        expected = sums * scale.to(dtype)[OWNERS] * rows[:, None]
        assert out.dtype == (F16 if code == 5 else BF16)
        assert (out - expected).abs().le(expected.abs() * 2**-7 + 1e-3).all()


def test_blocks_of_float8() -> None:
    x, weight = torch.randn(5, 300), torch.randn(3, 200, 300)
    rows, scale = torch.rand(5, 3), torch.rand(3, 2, 3)
    x, weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    out = grouped(x, weight, "A5", scale=[scale], per_token_scale=[rows], output_dtype=6)
    plain = torch.empty(3, 200, 300)
    for n in range(200):
        for k in range(300):
            plain[:, n, k] = weight[:, n, k].float() * scale[:, n // 128, k // 128]
    wide = torch.stack([x[:, k].float() * rows[:, k // 128] for k in range(300)], 1)
    torch.testing.assert_close(out.double(), by_rows(wide, plain), rtol=1e-4, atol=1e-3)


def test_microscaling() -> None:
    rows = torch.randint(120, 130, (5, 2, 2), dtype=torch.uint8)
    scale = torch.randint(120, 130, (3, 4, 2, 2), dtype=torch.uint8)
    options = {"scale_dtype": E8M0, "per_token_scale_dtype": E8M0, "output_dtype": 6}
    options |= {"scale": [scale], "per_token_scale": [rows]}
    powers = [one.flatten(-2).double().sub(127).exp2() for one in (rows, scale)]
    x = torch.randn(5, 128).to(torch.float8_e4m3fn)
    weight = torch.randn(3, 4, 128).to(torch.float8_e4m3fn)
    wide, plain = (
        torch.stack([one[..., k].double() * p[..., k // 32] for k in range(128)], -1)
        for one, p in zip((x, weight), powers, strict=True)
    )
    out = grouped(x, weight, "A5", **options)
    torch.testing.assert_close(out.double(), by_rows(wide, plain), rtol=1e-4, atol=1e-3)

    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    x = torch.randint(0, 256, (5, 64), dtype=torch.uint8)
    weight = torch.randint(0, 256, (3, 4, 64), dtype=torch.uint8)
    wide, plain = (
        torch.stack(
            [table[(one[..., k // 2] >> (4 * (k % 2)) & 15).long()].double() * p[..., k // 32]
             for k in range(128)], -1
        )
        for one, p in zip((x, weight), powers, strict=True)
    )  # fmt: skip
    out = grouped(x, weight, "A5", x_dtype=E2M1, weight_dtype=E2M1, **options)
    torch.testing.assert_close(out.double(), by_rows(wide, plain), rtol=1e-4, atol=1e-3)


def test_product_swiglu_and_quantisation() -> None:
    x, weight = int8()
    rows, scale = torch.rand(5) / 100, torch.rand(3, 4) / 100
    values, scales = torch.ops.npu.npu_grouped_matmul_swiglu_quant_v2(
        x, [weight.transpose(1, 2)], [scale], rows, torch.tensor([2, 2, 5]), dequant_dtype=6
    )
    gate, up = (by_rows(x, weight) * scale[OWNERS] * rows[:, None]).chunk(2, -1)
    expected = F.silu(gate) * up
    torch.testing.assert_close(scales.double(), expected.abs().amax(-1) / 127, rtol=1e-4, atol=1e-7)
    assert (values * scales[:, None] - expected).abs().le(0.51 * scales[:, None] + 1e-6).all()


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("A2", {"scale": F32, "output_dtype": 15}, "scale of torch.float32 for torch.bfloat16"),
        ("A5", {"scale": None, "output_dtype": 3}, "int32 on A5"),
        ("A2", {"scale": BF16, "output_dtype": None}, "output dtype"),
        ("A2", {"scale": BF16, "output_dtype": 15, "act_type": 1}, "act_type"),
    ],
)
def test_refusals(family: str, options: dict[str, Any], message: str) -> None:
    x, weight = int8()
    dtype = options.pop("scale")
    if dtype is not None:
        options |= {"scale": [torch.rand(3, 4).to(dtype)], "per_token_scale": [torch.rand(5)]}
    with pytest.raises(InvalidInputError, match=message):
        grouped(x, weight, family, **options)
