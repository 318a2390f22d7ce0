"""Inputs of top-k and top-p."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def _ties(new: Inputs) -> tuple[Any, ...]:
    logits = new.tensor(
        [
            [2.0, 1.0, 2.0, 1.0, 1.0, -3.0, 2.0],  # three at the top, of which p wants two
            [0.0, -0.0, 0.0, 0.0, -0.0, 0.0, 0.0],  # all equal
            [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 5.0],  # the second largest occurs three times
        ],
        F32,
    )
    return logits, new.tensor([0, 7, 2], I64), new.tensor([0.55, 0.5, 0.985], F32)


def _masked(new: Inputs) -> tuple[Any, ...]:
    gone = float("-inf")
    logits = new.tensor(
        [[gone, 1.0, gone, 2.0, gone], [gone] * 5, [gone, gone, gone, gone, -7.0]], F32
    )
    return logits, new.tensor([4, 2, 1], I32), new.tensor([0.9, 0.5, 0.0], F32)


CASES: dict[str, tuple[Case, ...]] = {
    "top_k_top_p": (
        Case("no_rows", lambda new: (new.randn(0, 63), new.tensor([], I32), None)),
        Case("one", lambda new: (new.randn(1, 1), new.tensor([1], I32), new.tensor([0.5], F32))),
        Case("neither", lambda new: (new.randn(2, 63), None, None)),
        Case(
            "k_only",
            lambda new: (new.randn(6, 32), new.tensor([1, 5, 32, 0, -1, 100000], I64), None),
        ),
        Case(
            "p_only",
            lambda new: (new.randn(4, 65, scale=3.0), None, new.tensor([0.0, 0.3, 0.9, 1.0], F32)),
        ),
        Case(
            "both",
            lambda new: (
                new.randn(3, 1000, scale=4.0),
                new.tensor([50, 0, 999], I32),
                new.tensor([0.9, 0.8, 1.0], F32),
            ),
        ),
        Case("equal_logits", _ties),
        Case("masked_logits", _masked),
        Case(
            "bf16",
            lambda new: (
                new.randn(2, 200, dtype=BF16, scale=2.0),
                new.tensor([20, 150], I32),
                new.tensor([0.7, 0.95], BF16),
            ),
        ),
        Case(
            "strided_f16",
            lambda new: (
                new.randn(4, 150, dtype=F16, scale=2.0)[::2, 20:83],
                new.tensor([9, 0, 3, 0], I64)[::2],
                new.tensor([0.6, 0.9], F32),
            ),
        ),
        Case(
            "v4",
            lambda new: (
                new.randn(64, 129280),
                new.randint(1, 100, 64, dtype=I32),
                new.rand(64),
            ),
            large=True,
        ),
        Case(
            "qwen_k_only",
            lambda new: (new.randn(256, 151936), new.randint(1, 100, 256, dtype=I32), None),
            large=True,
        ),
        Case(
            "k3_p_only_bf16",
            lambda new: (new.randn(256, 163840, dtype=BF16), None, new.rand(256)),
            large=True,
        ),
    )
}
