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


def _integers(
    new: Inputs, rows: int, width: int, groups: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        new.randint(-4000, 4000, rows, 2 * width, dtype=torch.int32),
        new.rand(groups or 1, 2 * width) * 0.01,
        new.rand(rows) * 0.1,
    )


def _nothing_behind(new: Inputs) -> tuple[torch.Tensor, ...]:
    gate_up, weight_scale, activation_scale = _integers(new, 9, 64, 3)
    if gate_up.device.type == "cpu":
        activation_scale[5:] = float("nan")
    return gate_up, weight_scale, activation_scale


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
    ),
    "dequant_swiglu_quant": (
        Case("no_rows", lambda new: (*_integers(new, 0, 32, None), None, False, None)),
        Case("one_channel", lambda new: (*_integers(new, 3, 1, None), None, False, None)),
        Case("odd", lambda new: (*_integers(new, 65, 63, None), None, False, 2.0)),
        Case("whole", lambda new: (*_integers(new, 17, 64, None), None, False, None)),
        Case(
            "groups",
            lambda new: (*_integers(new, 9, 64, 4), new.tensor([2, 0, 3, 4], I64), False, None),
        ),
        Case(
            "behind_the_groups",
            lambda new: (*_nothing_behind(new), new.tensor([2, 0, 3], I64), False, None),
        ),
        Case(
            "running_sums",
            lambda new: (*_nothing_behind(new), new.tensor([2, 2, 5], I64), True, 1.0),
        ),
        Case(
            "running_sums_whole",
            lambda new: (*_nothing_behind(new), new.tensor([2, 2, 5], I64), True, None),
        ),
        Case(
            "empty_groups",
            lambda new: (*_integers(new, 5, 33, 17), new.tensor([0] * 17, I64), False, None),
        ),
        Case(
            "strided",
            lambda new: (
                new.randint(-4000, 4000, 5, 256, dtype=torch.int32)[:, 3:133],
                *_integers(new, 5, 65, None)[1:],
                None,
                False,
                1.0,
            ),
        ),
        Case(
            "wide",
            lambda new: (*_integers(new, 3, 20001, 2), new.tensor([1, 1], I64), False, 1.0),
        ),
        Case(
            "v4_flash_experts",
            lambda new: (*_integers(new, 8192, 2048, 256), new.randint(0, 32, 256), False, 10.0),
            large=True,
        ),
        Case(
            "v4_pro_experts",
            lambda new: (*_integers(new, 8192, 3072, 384), new.randint(0, 32, 384), True, 10.0),
            large=True,
        ),
        Case(
            "unlimited_experts",
            lambda new: (*_integers(new, 8192, 2048, 256), new.randint(0, 32, 256), False, None),
            large=True,
        ),
    ),
}
