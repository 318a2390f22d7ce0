"""Inputs of the L2 norm."""

from __future__ import annotations

import torch
from ascend_ops_core.cases import Case

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

CASES: dict[str, tuple[Case, ...]] = {
    "l2_norm": (
        Case("no_rows", lambda new: (new.randn(0, 8), 1e-6, 1.0, F32)),
        Case("one", lambda new: (new.randn(1), 1e-6, 1.0, F32)),
        Case("zeros", lambda new: (new.full(0.0, 3, 16), 1e-6, 1.0, F32)),
        # Sums of squares near eps, where it matters that eps stands inside the root.
        Case("tiny", lambda new: (new.randn(9, 31, scale=1e-4), 1e-6, 0.5, F32)),
        Case("odd", lambda new: (new.randn(3, 67, 5, 63, dtype=BF16), 1e-6, 63**-0.5, BF16)),
        Case("to_float32", lambda new: (new.randn(70, 128, dtype=F16), 1e-6, 1.0, F32)),
        Case("strided", lambda new: (new.randn(9, 3, 40)[:, 1:, 7:], 1e-6, 1.0, BF16)),
        Case("wide", lambda new: (new.randn(2, 1500), 1e-6, 1.0, F32)),
        Case(
            "heads",
            lambda new: (new.randn(4096, 32, 128, dtype=BF16), 1e-6, 128**-0.5, BF16),
            large=True,
        ),
        Case(
            "heads_of_256",
            lambda new: (new.randn(4096, 16, 256, dtype=BF16), 1e-6, 1.0, F32),
            large=True,
        ),
    )
}
