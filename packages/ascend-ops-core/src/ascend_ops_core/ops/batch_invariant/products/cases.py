"""Inputs of the batch-invariant products."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

CASES: dict[str, tuple[Case, ...]] = {
    "mm_batch_invariant": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(64, 32))),
        Case("one", lambda new: (new.randn(1, 1), new.randn(1, 1))),
        Case("odd", lambda new: (new.randn(3, 65), new.randn(65, 63)), scale=8),
        Case(
            "tails",
            lambda new: (new.randn(65, 300, dtype=BF16), new.randn(300, 130, dtype=BF16)),
            scale=16,
        ),
        Case("tiles", lambda new: (new.randn(130, 300), new.randn(300, 270)), scale=16),
        Case(
            "strided",
            lambda new: (new.randn(63, 200, dtype=F16)[:, 7:71], new.randn(40, 64, dtype=F16).T),
            scale=8,
        ),
        Case(
            "v4_flash",
            lambda new: (new.randn(4096, 4096, dtype=BF16), new.randn(4096, 1536, dtype=BF16)),
            large=True,
        ),
        Case("float32", lambda new: (new.randn(1000, 7168), new.randn(7168, 384)), large=True),
    ),
    "bmm_batch_invariant": (
        Case("no_batches", lambda new: (new.randn(0, 3, 5), new.randn(0, 5, 4))),
        Case("odd", lambda new: (new.randn(3, 65, 17), new.randn(3, 17, 33)), scale=4),
        Case(
            "one_row",
            lambda new: (new.randn(3, 1, 63, dtype=F16), new.randn(3, 63, 17, dtype=F16)),
            scale=8,
        ),
        Case(
            "turned",
            lambda new: (
                new.randn(5, 4, 64, dtype=BF16).transpose(0, 1),
                new.randn(4, 20, 64, dtype=BF16).transpose(1, 2),
            ),
            scale=8,
        ),
        Case(
            "mla_up",
            lambda new: (
                new.randn(64, 1000, 512, dtype=BF16),
                new.randn(64, 512, 128, dtype=BF16),
            ),
            large=True,
        ),
    ),
    "addmm_batch_invariant": (
        Case("no_rows", lambda new: (new.randn(4), new.randn(0, 8), new.randn(8, 4), 1.0, 1.0)),
        Case(
            "row",
            lambda new: (new.randn(63), new.randn(3, 65), new.randn(65, 63), 1.0, 1.0),
            scale=8,
        ),
        Case(
            "scaled",
            lambda new: (
                new.randn(65, 130, dtype=BF16),
                new.randn(65, 70, dtype=BF16),
                new.randn(70, 130, dtype=BF16),
                0.5,
                2.0,
            ),
            scale=16,
        ),
        Case(
            "one_row",
            lambda new: (
                new.randn(1, 17, dtype=F16),
                new.randn(66, 33, dtype=F16),
                new.randn(33, 17, dtype=F16),
                2.0,
                1.0,
            ),
            scale=8,
        ),
        Case(
            "strided",
            lambda new: (
                new.randn(40, 63)[:, 5],
                new.randn(63, 200)[:, 7:71],
                new.randn(40, 64).T,
                1.0,
                1.0,
            ),
            scale=8,
        ),
        Case(
            "biased",
            lambda new: (
                new.randn(7168, dtype=BF16),
                new.randn(512, 7168, dtype=BF16),
                new.randn(7168, 7168, dtype=BF16),
                1.0,
                1.0,
            ),
            large=True,
        ),
        Case(
            "residual",
            lambda new: (
                new.randn(512, 4096, dtype=BF16),
                new.randn(512, 4096, dtype=BF16),
                new.randn(4096, 4096, dtype=BF16),
                0.5,
                1.0,
            ),
            large=True,
        ),
    ),
    "linear_batch_invariant": (
        Case("no_rows", lambda new: (new.randn(0, 2, 8), new.randn(4, 8), None)),
        Case("odd", lambda new: (new.randn(3, 65), new.randn(63, 65), new.randn(63)), scale=8),
        Case(
            "tails",
            lambda new: (new.randn(2, 65, 300, dtype=BF16), new.randn(270, 300, dtype=BF16), None),
            scale=16,
        ),
        Case(
            "biased",
            lambda new: (
                new.randn(65, 64, dtype=F16),
                new.randn(40, 64, dtype=F16),
                new.randn(40, dtype=F16),
            ),
            scale=8,
        ),
        Case(
            "strided",
            lambda new: (
                new.randn(1, 200, dtype=BF16)[:, 7:71],
                new.randn(64, 40, dtype=BF16).T,
                new.randn(40, 2, dtype=BF16)[:, 1],
            ),
            scale=8,
        ),
        Case(
            "v4_pro",
            lambda new: (
                new.randn(512, 7168, dtype=BF16),
                new.randn(1536, 7168, dtype=BF16),
                None,
            ),
            large=True,
        ),
        Case(
            "vocabulary",
            lambda new: (
                new.randn(64, 4096, dtype=BF16),
                new.randn(129280, 4096, dtype=BF16),
                None,
            ),
            large=True,
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
}
