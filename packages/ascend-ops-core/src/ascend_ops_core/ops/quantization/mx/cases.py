"""Inputs of the microscaling formats."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FP8, U8 = torch.float8_e4m3fn, torch.uint8


def _special(new: Inputs) -> torch.Tensor:
    """Blocks of zeros, NaN, infinity, subnormals, halves between codes, and near the largest."""
    x = new.randn(4, 96)
    if new.device != "meta":
        x[0, :32] = 0.0
        x[0, 40] = float("nan")
        x[0, 95] = float("-inf")
        x[1, :32] *= 1e-42
        x[1, 32:64] *= 1e-37
        x[1, 64:] *= 3e37
        x[2, :32] = torch.arange(32) * 0.25 - 0.0
        x[2, 32:64] = torch.arange(32) * -0.25
        x[2, 64:] = torch.arange(480, 512)
        x[3, :32] = torch.arange(32) * 2.0**-10
        x[3, 0] = 1.99
    return x


def _bits(new: Inputs, *shape: int) -> torch.Tensor:
    """Any bits as float8_e4m3fn, NaN included."""
    if new.device == "meta":
        return torch.empty(shape, dtype=FP8, device="meta")
    return new.randint(0, 256, *shape, dtype=U8).view(FP8)


_QUANTIZE = (
    Case("no_rows", lambda new: (new.randn(0, 64),)),
    Case("one_block", lambda new: (new.randn(32, scale=9.0),)),
    # torch_npu's documentation is silent about rows that are not finite.
    Case("special", lambda new: (_special(new),), unspecified=("torch_npu",)),
    Case("half", lambda new: (new.randn(3, 5, 96, dtype=F16),)),
    Case("bfloat16", lambda new: (new.randn(65, 64, dtype=BF16),)),
    Case("strided", lambda new: (new.randn(9, 256)[:, 64:192],)),
    Case("v4_hidden", lambda new: (new.randn(4096, 7168, dtype=BF16),), large=True),
    Case("v4_hidden_float32", lambda new: (new.randn(4096, 4096),), large=True),
)

CASES: dict[str, tuple[Case, ...]] = {
    "mxfp8_quantize": _QUANTIZE,
    "mxfp4_quantize": _QUANTIZE,
    "mxfp8_dequantize": (
        Case("no_rows", lambda new: (_bits(new, 0, 64), new.randint(0, 9, 0, 2, dtype=U8), BF16)),
        Case(
            "any_bits",
            lambda new: (_bits(new, 7, 96), new.randint(90, 150, 7, 3, dtype=U8), F32),
        ),
        Case(
            "extreme_scales",
            lambda new: (_bits(new, 2, 64), new.tensor([[0, 1], [255, 245]], U8), F32),
        ),
        Case(
            "strided",
            lambda new: (
                _bits(new, 65, 256)[:, 64:128],
                new.randint(110, 130, 65, 4, dtype=U8)[:, 1:3],
                BF16,
            ),
        ),
        Case(
            "v4_hidden",
            lambda new: (
                _bits(new, 4096, 7168),
                new.randint(90, 130, 4096, 224, dtype=U8),
                BF16,
            ),
            large=True,
        ),
    ),
    "mxfp4_dequantize": (
        Case(
            "no_rows",
            lambda new: (
                new.randint(0, 9, 0, 32, dtype=U8),
                new.randint(0, 9, 0, 2, dtype=U8),
                BF16,
            ),
        ),
        Case(
            "any_bits",
            lambda new: (
                new.randint(0, 256, 7, 48, dtype=U8),
                new.randint(90, 150, 7, 3, dtype=U8),
                F32,
            ),
        ),
        Case(
            "extreme_scales",
            lambda new: (
                new.randint(0, 256, 2, 32, dtype=U8),
                new.tensor([[0, 1], [255, 250]], U8),
                F32,
            ),
        ),
        Case(
            "strided",
            lambda new: (
                new.randint(0, 256, 65, 128, dtype=U8)[:, 64:96],
                new.randint(110, 130, 65, 4, dtype=U8)[:, 1:3],
                BF16,
            ),
        ),
        Case(
            "v4_expert",
            lambda new: (
                new.randint(0, 256, 2048, 3584, dtype=U8),
                new.randint(90, 130, 2048, 224, dtype=U8),
                BF16,
            ),
            large=True,
        ),
    ),
    "fp4_pack": (
        Case("none", lambda new: (new.randint(0, 16, 0, 2, dtype=U8),)),
        Case("one", lambda new: (new.randint(0, 16, 2, dtype=U8),)),
        Case("odd", lambda new: (new.randint(0, 16, 65, 126, dtype=U8),)),
        Case("strided", lambda new: (new.randint(0, 256, 5, 96, dtype=U8)[:, ::3],)),
        Case("expert", lambda new: (new.randint(0, 16, 2048, 7168, dtype=U8),), large=True),
    ),
    "fp4_unpack": (
        Case("none", lambda new: (new.randint(0, 256, 0, 1, dtype=U8),)),
        Case("one", lambda new: (new.randint(0, 256, 1, dtype=U8),)),
        Case("odd", lambda new: (new.randint(0, 256, 65, 63, dtype=U8),)),
        Case("strided", lambda new: (new.randint(0, 256, 5, 96, dtype=U8)[:, ::3],)),
        Case("expert", lambda new: (new.randint(0, 256, 2048, 3584, dtype=U8),), large=True),
    ),
}
