"""Inputs of the convolution."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16 = torch.bfloat16
ONE, NONE = [1, 1, 1], [0, 0, 0]

CASES: dict[str, tuple[Case, ...]] = {
    "conv3d": (
        Case(
            "no_images",
            lambda new: (
                new.randn(0, 3, 2, 4, 4),
                new.randn(5, 3, 2, 2, 2),
                None,
                [2] * 3,
                NONE,
                ONE,
                1,
            ),
        ),
        Case(
            "patches",
            lambda new: (
                new.randn(3, 3, 2, 7, 9),
                new.randn(65, 3, 2, 3, 4),
                new.randn(65),
                [2, 3, 4],
                NONE,
                ONE,
                1,
            ),
            scale=8,
        ),
        Case(
            "overlapping",
            lambda new: (
                new.randn(1, 4, 3, 6, 5),
                new.randn(6, 2, 2, 3, 2),
                new.randn(6),
                [1, 2, 1],
                [1, 0, 1],
                [1, 1, 2],
                2,
            ),
            scale=8,
        ),
        Case(
            "strided",
            lambda new: (
                new.randn(2, 3, 4, 6, 8, dtype=BF16)[..., ::2],
                new.randn(5, 3, 2, 2, 2, dtype=BF16),
                None,
                [2] * 3,
                NONE,
                ONE,
                1,
            ),
            scale=8,
        ),
        Case(
            "qwen_vl_patch",
            lambda new: (
                new.randn(4096, 3, 2, 14, 14, dtype=BF16),
                new.randn(1280, 3, 2, 14, 14, dtype=BF16),
                None,
                [2, 14, 14],
                NONE,
                ONE,
                1,
            ),
            large=True,
        ),
    ),
}
