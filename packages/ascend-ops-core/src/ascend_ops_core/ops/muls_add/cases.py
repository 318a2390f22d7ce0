"""Inputs of the scaled sum."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16 = torch.bfloat16, torch.float16

CASES: dict[str, tuple[Case, ...]] = {
    "muls_add": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(0, 64), 2.5)),
        Case("one", lambda new: (new.randn(1), new.randn(1), -1.0)),
        Case("odd", lambda new: (new.randn(3, 65), new.randn(3, 65), 0.1)),
        Case("ragged", lambda new: (new.randn(63, 1000), new.randn(63, 1000), 2.827)),
        Case("half", lambda new: (new.randn(65, dtype=F16), new.randn(65, dtype=F16), 16.0)),
        Case(
            "strided",
            lambda new: (new.randn(64, 9, dtype=BF16).t(), new.randn(9, 64, dtype=BF16), 0.5),
        ),
        Case(
            "v4_hidden",
            lambda new: (new.randn(4096, 7168, dtype=BF16), new.randn(4096, 7168, dtype=BF16), 2.5),
            large=True,
        ),
    ),
}
