"""Inputs of the count of NaN."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _with_nans(new: Inputs, rows: int, columns: int, dtype: torch.dtype = F32) -> torch.Tensor:
    x = new.randn(rows, columns)
    return torch.where(x > 0.5, float("nan"), x).to(dtype)


CASES: dict[str, tuple[Case, ...]] = {
    "num_nans": (
        Case("no_rows", lambda new: (new.randn(0, 63),)),
        Case("no_columns", lambda new: (new.randn(3, 0),)),
        Case("one", lambda new: (new.full(float("nan"), 1, 1),)),
        Case("none", lambda new: (new.randn(3, 65),)),
        Case("infinities", lambda new: (new.full(float("-inf"), 2, 63),)),
        Case("odd", lambda new: (_with_nans(new, 3, 63),)),
        Case("f16", lambda new: (_with_nans(new, 5, 1000, F16),)),
        Case("bf16", lambda new: (_with_nans(new, 65, 65, BF16),)),
        Case("strided", lambda new: (_with_nans(new, 12, 200)[::3, 100:165],)),
        Case("many_blocks", lambda new: (_with_nans(new, 2, 20001),)),
        Case("v4", lambda new: (new.randn(256, 129280),), large=True),
        Case("qwen_bf16", lambda new: (new.randn(256, 151936, dtype=BF16),), large=True),
    )
}
