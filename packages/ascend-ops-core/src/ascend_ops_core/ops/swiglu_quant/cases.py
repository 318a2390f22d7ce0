"""Inputs of SwiGLU with quantised rows."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, I64 = torch.bfloat16, torch.float16, torch.int64


def _behind_lies_nan(new: Inputs) -> tuple[torch.Tensor, torch.Tensor, bool, float]:
    gate_up = new.randn(9, 2 * 33, scale=3.0)
    if gate_up.device.type == "cpu":
        gate_up[5:] = float("nan")
    return gate_up, new.tensor([2, 0, 3], I64), False, 10.0


CASES: dict[str, tuple[Case, ...]] = {
    "swiglu_quant": (
        Case("no_rows", lambda new: (new.randn(0, 64), None, False, None)),
        Case("one_channel", lambda new: (new.randn(3, 2), None, False, None)),
        Case("odd", lambda new: (new.randn(65, 2 * 63, scale=3.0), None, False, 2.0)),
        Case("rows_behind_the_groups", _behind_lies_nan),
        Case(
            "running_sums",
            lambda new: (new.randn(9, 66, dtype=F16), new.tensor([2, 2, 5], I64), True, None),
        ),
        Case(
            "empty_groups",
            lambda new: (new.randn(5, 66), new.tensor([0] * 17, I64), False, None),
        ),
        Case("zeros", lambda new: (new.full(0.0, 3, 64), None, False, 1.0)),
        Case("strided", lambda new: (new.randn(5, 256, dtype=BF16)[:, 3:133], None, False, None)),
        Case(
            "wide",
            lambda new: (new.randn(3, 2 * 20001), new.tensor([1, 1], I64), False, 1.0),
        ),
        Case(
            "v4_flash_experts",
            lambda new: (
                new.randn(8192, 2 * 2048, dtype=BF16),
                new.randint(0, 32, 256),
                False,
                10.0,
            ),
            large=True,
        ),
        Case(
            "v4_pro_experts",
            lambda new: (
                new.randn(8192, 2 * 3072, dtype=BF16),
                new.randint(0, 32, 384),
                True,
                10.0,
            ),
            large=True,
        ),
        Case(
            "dense",
            lambda new: (new.randn(1024, 2 * 18432, dtype=BF16), None, False, None),
            large=True,
        ),
    )
}
