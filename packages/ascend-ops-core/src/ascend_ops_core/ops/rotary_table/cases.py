"""Inputs of the rows of a rotary table."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16 = torch.bfloat16, torch.float16
I32, I64 = torch.int32, torch.int64

CASES: dict[str, tuple[Case, ...]] = {
    "gather_cos_sin": (
        Case(
            "no_tokens",
            lambda new: (new.randn(9, 4), new.randn(9, 4), new.randint(0, 9, 0)),
        ),
        Case("one", lambda new: (new.randn(1, 1), new.randn(1, 1), new.tensor([0], I64))),
        Case(
            "odd",
            lambda new: (new.randn(65, 63), new.randn(65, 63), new.randint(0, 65, 63, dtype=I32)),
        ),
        Case(
            "outside",
            lambda new: (
                new.randn(5, 12),
                new.randn(5, 12),
                new.tensor([4, 5, -1, 0, 131071], I64),
            ),
        ),
        Case(
            "bf16",
            lambda new: (
                new.randn(9, 12, dtype=BF16),
                new.randn(9, 12, dtype=BF16),
                new.tensor([8, 9, 0, 3], I64),
            ),
        ),
        Case(
            "f16",
            lambda new: (
                new.randn(9, 13, dtype=F16),
                new.randn(9, 13, dtype=F16),
                new.tensor([8, 9, 0, 3], I64),
            ),
        ),
        Case(
            "halves_of_a_table",
            lambda new: (*new.randn(9, 26).chunk(2, dim=1), new.randint(0, 9, 14)[::2]),
        ),
        Case(
            "v4",
            lambda new: (
                new.randn(131072, 32),
                new.randn(131072, 32),
                new.randint(0, 131072, 4096),
            ),
            large=True,
        ),
    ),
    "mrope_cos_sin": (
        Case(
            "no_tokens",
            lambda new: (
                new.randn(9, 6),
                new.randn(9, 6),
                new.randint(0, 9, 3, 0),
                [2, 2, 2],
                False,
            ),
        ),
        Case(
            "blocks",
            lambda new: (
                new.randn(33, 13),
                new.randn(33, 13),
                new.randint(0, 33, 3, 17),
                [4, 5, 4],
                False,
            ),
        ),
        Case(
            "turns",
            lambda new: (
                new.randn(33, 16),
                new.randn(33, 16),
                new.randint(0, 33, 3, 9, dtype=I32),
                [6, 5, 5],
                True,
            ),
        ),
        Case(
            "outside",
            lambda new: (
                new.randn(5, 6),
                new.randn(5, 6),
                new.tensor([[4, 5, 1], [0, 1, -1], [2, 2, 2]], I64),
                [2, 2, 2],
                False,
            ),
        ),
        Case(
            "bf16",
            lambda new: (
                new.randn(33, 13, dtype=BF16),
                new.randn(33, 13, dtype=BF16),
                new.tensor([[32, 33, 1], [0, 1, -1], [2, 2, 2]], I64),
                [4, 5, 4],
                False,
            ),
        ),
        Case(
            "halves_of_a_table",
            lambda new: (
                *new.randn(9, 12, dtype=F16).chunk(2, dim=1),
                new.randint(0, 9, 3, 14)[:, ::2],
                [2, 2, 2],
                True,
            ),
        ),
        Case(
            "qwen2_vl",
            lambda new: (
                new.randn(32768, 64),
                new.randn(32768, 64),
                new.randint(0, 32768, 3, 4096),
                [16, 24, 24],
                False,
            ),
            large=True,
        ),
        Case(
            "qwen3_vl",
            lambda new: (
                new.randn(32768, 64),
                new.randn(32768, 64),
                new.randint(0, 32768, 3, 4096),
                [24, 20, 20],
                True,
            ),
            large=True,
        ),
    ),
}
