"""Inputs of the gated norms."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16 = torch.bfloat16, torch.float16

_SHARED = (
    Case(
        "no_rows",
        lambda new: (new.randn(0, 8), new.randn(0, 8), new.randn(8), None, 1e-5, 8, True, "silu"),
    ),
    Case(
        "one_channel",
        lambda new: (new.randn(3, 1), new.randn(3, 1), None, None, 1e-2, 1, True, "sigmoid"),
    ),
    Case(
        "odd",
        lambda new: (
            new.randn(3, 65),
            new.randn(3, 65),
            new.randn(65),
            new.randn(65),
            1e-5,
            65,
            True,
            "silu",
        ),
    ),
    Case(
        "gate_first",
        lambda new: (
            new.randn(65, 63, dtype=F16),
            new.randn(65, 63, dtype=F16),
            new.randn(63),
            None,
            1e-5,
            63,
            False,
            "swish",
        ),
    ),
    Case(
        "groups",
        lambda new: (
            new.randn(5, 96, dtype=BF16),
            new.randn(5, 96),
            new.randn(96, dtype=BF16),
            new.randn(96),
            1e-5,
            32,
            False,
            "silu",
        ),
    ),
    Case(
        "no_gate",
        lambda new: (new.randn(2, 7, 60), None, new.randn(60), None, 1e-5, 20, False, "silu"),
    ),
    Case(
        "strided",
        lambda new: (
            new.randn(9, 256, dtype=BF16)[:, 64:191],
            new.randn(9, 130, dtype=BF16)[:, :127],
            new.randn(127),
            None,
            1e-5,
            127,
            True,
            "sigmoid",
        ),
    ),
    Case(
        "padded_wide",
        lambda new: (
            new.randn(3, 2560),
            new.randn(3, 2560),
            new.randn(2560),
            None,
            1e-5,
            2560,
            True,
            "sigmoid",
        ),
    ),
    Case(
        "wide",
        lambda new: (
            new.randn(2, 40000),
            new.randn(2, 40000),
            new.randn(40000),
            None,
            1e-5,
            20000,
            False,
            "silu",
        ),
    ),
    Case(
        "wide_gate_last",
        lambda new: (
            new.randn(1, 20000, dtype=BF16),
            new.randn(1, 20000, dtype=BF16),
            new.randn(20000),
            new.randn(20000),
            1e-5,
            20000,
            True,
            "sigmoid",
        ),
    ),
    Case(
        "mamba2_8192_by_8",
        lambda new: (
            new.randn(4096, 8192, dtype=BF16),
            new.randn(4096, 8192, dtype=BF16),
            new.randn(8192, dtype=BF16),
            None,
            1e-5,
            1024,
            False,
            "silu",
        ),
        large=True,
    ),
)

CASES: dict[str, tuple[Case, ...]] = {
    "rms_norm_gated": (
        *_SHARED,
        Case(
            "mamba2_decode",
            lambda new: (
                new.randn(4, 8192, dtype=BF16),
                new.randn(4, 8192, dtype=BF16),
                new.randn(8192, dtype=BF16),
                None,
                1e-5,
                1024,
                False,
                "silu",
            ),
            large=True,
        ),
        Case(
            "kimi_k3_heads",
            lambda new: (
                new.randn(131072, 128, dtype=BF16),
                new.randn(131072, 128, dtype=BF16),
                new.randn(128, dtype=BF16),
                None,
                1e-5,
                128,
                True,
                "sigmoid",
            ),
            large=True,
        ),
        Case(
            "qwen3_next_heads",
            lambda new: (
                new.randn(131072, 128, dtype=BF16),
                new.randn(131072, 128, dtype=BF16),
                new.randn(128),
                None,
                1e-6,
                128,
                True,
                "silu",
            ),
            large=True,
        ),
    ),
    "layer_norm_gated": _SHARED,
}
