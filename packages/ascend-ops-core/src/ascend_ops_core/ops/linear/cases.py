"""Inputs of the matrix products."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16 = torch.bfloat16, torch.float16

CASES: dict[str, tuple[Case, ...]] = {
    "linear": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(8, 64))),
        Case("one", lambda new: (new.randn(1, 1), new.randn(1, 1))),
        Case("odd", lambda new: (new.randn(3, 65), new.randn(63, 65)), scale=8),
        Case(
            "strided",
            lambda new: (new.randn(65, 200, dtype=F16)[:, 7:71], new.randn(40, 64, dtype=F16)),
            scale=8,
        ),
        Case(
            "many",
            lambda new: (new.randn(1000, 63, dtype=BF16), new.randn(65, 63, dtype=BF16)),
            scale=8,
        ),
        Case(
            "v4_pro",
            lambda new: (new.randn(4096, 7168, dtype=BF16), new.randn(1536, 7168, dtype=BF16)),
            large=True,
        ),
        Case(
            "vocabulary",
            lambda new: (new.randn(64, 4096, dtype=BF16), new.randn(129280, 4096, dtype=BF16)),
            large=True,
        ),
    ),
    "grouped_linear": (
        Case("no_rows", lambda new: (new.randn(0, 2, 8), new.randn(2, 4, 8))),
        Case("odd", lambda new: (new.randn(3, 5, 65), new.randn(5, 63, 65)), scale=8),
        Case(
            "many",
            lambda new: (new.randn(65, 2, 40, dtype=BF16), new.randn(2, 17, 40, dtype=BF16)),
            scale=8,
        ),
        Case(
            "v4_output",
            lambda new: (
                new.randn(512, 16, 4096, dtype=BF16),
                new.randn(16, 1024, 4096, dtype=BF16),
            ),
            large=True,
        ),
    ),
    "unquantized_gemm": (
        Case("no_rows", lambda new: (new.randn(0, 3, 8), new.randn(4, 8), None)),
        Case("odd", lambda new: (new.randn(3, 65), new.randn(63, 65), new.randn(63)), scale=8),
        Case(
            "leading_axes",
            lambda new: (new.randn(2, 3, 40, dtype=BF16), new.randn(65, 40, dtype=BF16), None),
            scale=8,
        ),
        Case(
            "qkv_bias",
            lambda new: (
                new.randn(64, 6144, dtype=BF16),
                new.randn(9216, 6144, dtype=BF16),
                new.randn(9216, dtype=BF16),
            ),
            large=True,
        ),
    ),
    "to_nz": (
        Case("odd", lambda new: (new.randn(3, 65),)),
        Case("blocks", lambda new: (new.randn(32, 48, dtype=BF16),)),
        Case("half", lambda new: (new.randn(16, 64, dtype=F16),)),
        Case("v4_pro", lambda new: (new.randn(1536, 7168, dtype=BF16),), large=True),
    ),
}
