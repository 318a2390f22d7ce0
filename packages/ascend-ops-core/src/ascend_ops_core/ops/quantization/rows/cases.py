"""Inputs of the quantisation of rows."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INT8, FP8 = torch.int8, torch.float8_e4m3fn


def _special_rows(new: Inputs) -> torch.Tensor:
    """Rows of zeros, of one subnormal, with NaN, with infinity, with halves, and ordinary ones."""
    x = new.randn(7, 65)
    if new.device != "meta":
        x[0] = 0.0
        x[1] = 0.0
        x[1, 3] = 1e-40
        x[2, 64] = float("nan")
        x[3, 0] = float("-inf")
        x[4] = torch.arange(65) - 31.5
        x[4, 0] = 127.0
    return x


def _packed_heads(new: Inputs) -> torch.Tensor:
    """The middle heads of a packed projection."""
    return new.randn(65, 8 * 32, dtype=BF16).unflatten(-1, (8, 32))[:, 5:7]


CASES: dict[str, tuple[Case, ...]] = {
    "dynamic_quantize": (
        Case("no_rows", lambda new: (new.randn(0, 64), None, INT8)),
        Case("one_channel", lambda new: (new.randn(5, 1), None, INT8)),
        Case("odd", lambda new: (new.randn(3, 65, scale=30.0), None, INT8)),
        Case("special", lambda new: (_special_rows(new), None, INT8)),
        Case("special_fp8", lambda new: (_special_rows(new), None, FP8)),
        Case("smooth", lambda new: (new.randn(65, 63, dtype=F16), new.rand(63, dtype=F16), INT8)),
        Case("ragged", lambda new: (new.randn(2, 7, 1000, dtype=BF16), None, INT8)),
        Case("ragged_fp8", lambda new: (new.randn(2, 7, 1000, dtype=BF16), new.rand(1000), FP8)),
        Case("strided", lambda new: (new.randn(9, 256)[:, 64:191], None, INT8)),
        Case("packed_heads", lambda new: (_packed_heads(new), None, INT8)),
        Case("packed_heads_fp8", lambda new: (_packed_heads(new), None, FP8)),
        Case("one_vector", lambda new: (new.randn(100), None, INT8)),
        Case("wide", lambda new: (new.randn(2, 20000), new.rand(20000), INT8)),
        Case("wide_fp8", lambda new: (new.randn(1, 20000, dtype=F16), None, FP8)),
        Case(
            "v4_flash_hidden",
            lambda new: (new.randn(4096, 4096, dtype=BF16), None, INT8),
            large=True,
        ),
        Case(
            "v4_pro_hidden_fp8",
            lambda new: (new.randn(4096, 7168, dtype=BF16), None, FP8),
            large=True,
        ),
        Case(
            "m3_intermediate",
            lambda new: (new.randn(256, 3072, dtype=BF16), new.rand(3072, dtype=BF16), INT8),
            large=True,
        ),
        Case(
            "indexer_keys",
            lambda new: (new.randn(4096, 1, 128, dtype=BF16), None, INT8),
            large=True,
        ),
        Case(
            "keys_in_qkv",
            lambda new: (
                new.randn(512, 80 * 128, dtype=BF16).unflatten(-1, (80, 128))[:, 64:72],
                None,
                INT8,
            ),
            large=True,
        ),
    ),
    "static_quantize": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.rand(1), None, INT8)),
        Case("one_scale", lambda new: (_special_rows(new), new.full(0.25, 1), None, INT8)),
        Case("one_scale_fp8", lambda new: (_special_rows(new), new.full(0.02, 1), None, FP8)),
        Case(
            "offset",
            lambda new: (
                new.randn(65, 63, dtype=F16),
                new.full(0.02, 1),
                new.tensor([-7], torch.int32),
                INT8,
            ),
        ),
        Case(
            "per_channel",
            lambda new: (
                new.randn(3, 1000, dtype=BF16),
                new.full(0.01, 1000) + new.rand(1000),
                new.randn(1000, scale=9.0),
                INT8,
            ),
        ),
        Case(
            "strided",
            lambda new: (new.randn(9, 256)[:, 64:191], new.full(0.02, 1), None, INT8),
        ),
        Case("wide", lambda new: (new.randn(2, 20000), new.full(0.01, 20000), None, INT8)),
        Case(
            "v4_pro_hidden",
            lambda new: (
                new.randn(4096, 7168, dtype=BF16),
                new.rand(7168),
                new.rand(7168, dtype=BF16),
                INT8,
            ),
            large=True,
        ),
        Case(
            "v4_pro_hidden_fp8",
            lambda new: (new.randn(4096, 7168, dtype=BF16), new.rand(1), None, FP8),
            large=True,
        ),
    ),
}
