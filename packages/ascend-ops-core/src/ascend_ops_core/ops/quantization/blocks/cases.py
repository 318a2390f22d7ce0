"""Inputs of the quantisation of blocks."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INT8, FP8, E8M0 = torch.int8, torch.float8_e4m3fn, torch.uint8


def _special(new: Inputs) -> torch.Tensor:
    """Blocks of zeros, with NaN, with infinity, tiny, and with an exact power of two as scale."""
    x = new.randn(7, 130)
    if new.device != "meta":
        x[0] = 0.0
        x[1, 3] = float("nan")
        x[2, 129] = float("inf")
        x[3] *= 1e-37
        x[4, 0] = 448.0
        x[5, :128] *= 1e37
    return x


def _bits(new: Inputs, *shape: int) -> torch.Tensor:
    """Any bits as float8_e4m3fn, NaN included."""
    if new.device == "meta":
        return torch.empty(shape, dtype=FP8, device="meta")
    return new.randint(0, 256, *shape, dtype=torch.uint8).view(FP8)


CASES: dict[str, tuple[Case, ...]] = {
    "block_quantize": (
        Case("no_rows", lambda new: (new.randn(0, 256), FP8, 1, F32, 0.0)),
        Case("special", lambda new: (_special(new), FP8, 1, F32, 0.0)),
        Case("special_powers", lambda new: (_special(new), FP8, 1, E8M0, 1e-38)),
        Case("special_int8", lambda new: (_special(new), INT8, 1, E8M0, 0.0)),
        Case("whole", lambda new: (new.randn(3, 5, 256, dtype=BF16), FP8, 1, E8M0, 1e-4)),
        Case("whole_int8", lambda new: (new.randn(65, 384, dtype=F16), INT8, 1, F32, 0.0)),
        Case("ragged", lambda new: (new.randn(3, 1000, dtype=BF16), FP8, 1, F32, 0.0)),
        Case("one_column", lambda new: (new.randn(5, 1), FP8, 1, F32, 0.0)),
        Case("strided", lambda new: (new.randn(9, 256)[:, 64:191], INT8, 1, F32, 0.0)),
        Case("square", lambda new: (new.randn(256, 128, dtype=BF16), FP8, 128, E8M0, 0.0)),
        Case("square_ragged", lambda new: (new.randn(130, 200), FP8, 128, F32, 0.0)),
        Case("square_special", lambda new: (_special(new), FP8, 128, E8M0, 0.0)),
        Case("square_int8", lambda new: (new.randn(63, 256)[:, :129], INT8, 128, F32, 0.0)),
        Case(
            "v4_activations",
            lambda new: (new.randn(4096, 7168, dtype=BF16), FP8, 1, E8M0, 1e-4),
            large=True,
        ),
        Case(
            "v3_activations",
            lambda new: (new.randn(4096, 7168, dtype=BF16), FP8, 1, F32, 0.0),
            large=True,
        ),
        Case(
            "int8_activations",
            lambda new: (new.randn(4096, 4096, dtype=F32), INT8, 1, F32, 0.0),
            large=True,
        ),
        Case(
            "v4_weight",
            lambda new: (new.randn(7168, 16384, dtype=BF16), FP8, 128, E8M0, 0.0),
            large=True,
        ),
    ),
    "block_dequantize": (
        Case("no_rows", lambda new: (_bits(new, 0, 256), new.rand(0, 2), 1, BF16)),
        Case("whole", lambda new: (_bits(new, 3, 256), new.rand(3, 2), 1, BF16)),
        Case(
            "powers",
            lambda new: (
                _bits(new, 3, 1000),
                new.randint(100, 140, 3, 8, dtype=torch.uint8),
                1,
                F32,
            ),
        ),
        Case(
            "int8",
            lambda new: (
                new.randint(-128, 128, 65, 130, dtype=INT8),
                new.tensor([[0, 255]] + 64 * [[127, 120]], torch.uint8),
                1,
                F32,
            ),
        ),
        Case(
            "square",
            lambda new: (_bits(new, 200, 130), new.rand(2, 2), 128, BF16),
        ),
        Case(
            "square_powers",
            lambda new: (
                _bits(new, 129, 64),
                new.tensor([[120], [130]], torch.uint8),
                128,
                F16,
            ),
        ),
        Case(
            "v4_weight",
            lambda new: (
                _bits(new, 7168, 16384),
                new.randint(100, 130, 56, 128, dtype=torch.uint8),
                128,
                BF16,
            ),
            large=True,
        ),
        Case(
            "v3_activations",
            lambda new: (_bits(new, 4096, 7168), new.rand(4096, 56), 1, BF16),
            large=True,
        ),
        Case(
            "int8_activations",
            lambda new: (
                new.randint(-128, 128, 4096, 4096, dtype=INT8),
                new.rand(4096, 32),
                1,
                BF16,
            ),
            large=True,
        ),
    ),
}
