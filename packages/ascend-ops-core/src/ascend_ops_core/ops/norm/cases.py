"""Inputs of the norms."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

CASES: dict[str, tuple[Case, ...]] = {
    "rms_norm": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(64), 1e-6)),
        Case("one_channel", lambda new: (new.randn(5, 1), new.randn(1), 1e-6)),
        Case("odd", lambda new: (new.randn(3, 65, scale=3.0), new.randn(65), 1e-6)),
        Case("unweighted", lambda new: (new.randn(65, 63, dtype=F16), None, 1e-5)),
        Case("ragged", lambda new: (new.randn(2, 7, 1000, dtype=BF16), new.randn(1000), 1e-6)),
        Case("strided", lambda new: (new.randn(9, 256)[:, 64:191], new.randn(127), 1e-6)),
        Case(
            "same_dtype",
            lambda new: (new.randn(4, 96, dtype=BF16), new.randn(96, dtype=BF16), 1e-6),
        ),
        Case("wide", lambda new: (new.randn(2, 40000), new.randn(40000), 1e-6)),
        Case(
            "v4_flash_hidden",
            lambda new: (new.randn(4096, 4096, dtype=BF16), new.randn(4096), 1e-6),
            large=True,
        ),
        Case(
            "v4_pro_hidden",
            lambda new: (new.randn(4096, 7168, dtype=BF16), new.randn(7168, dtype=BF16), 1e-6),
            large=True,
        ),
        Case(
            "v4_query_heads",
            lambda new: (new.randn(512, 128, 512, dtype=BF16), None, 1e-6),
            large=True,
        ),
    ),
    "rms_norm_bias": (
        Case("no_rows", lambda new: (new.randn(0, 8), new.randn(8), new.randn(8), 1e-6)),
        Case("one_row", lambda new: (new.randn(1, 63), new.randn(63), new.randn(63), 1e-6)),
        Case("unweighted", lambda new: (new.randn(5, 65, dtype=F16), None, new.randn(65), 1e-5)),
        Case(
            "same_dtype",
            lambda new: (
                new.randn(3, 1000, dtype=BF16),
                new.randn(1000, dtype=BF16),
                new.randn(1000, dtype=BF16),
                1e-6,
            ),
        ),
        Case("strided", lambda new: (new.randn(64, 9).t(), new.randn(64), new.randn(64), 1e-6)),
        Case("wide", lambda new: (new.randn(2, 40000), None, new.randn(40000), 1e-6)),
        Case(
            "hidden_7168",
            lambda new: (
                new.randn(4096, 7168, dtype=BF16),
                new.randn(7168, dtype=BF16),
                new.randn(7168, dtype=BF16),
                1e-6,
            ),
            large=True,
        ),
    ),
    "gemma_rms_norm": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(64), 1e-6)),
        Case("odd", lambda new: (new.randn(3, 65, scale=3.0), new.randn(65), 1e-6)),
        Case("ragged", lambda new: (new.randn(7, 1000, dtype=BF16), new.randn(1000), 1e-6)),
        Case(
            "same_dtype",
            lambda new: (new.randn(65, 63, dtype=F16), new.randn(63, dtype=F16), 1e-6),
        ),
        Case("strided", lambda new: (new.randn(64, 9).t(), new.randn(64), 1e-6)),
        Case("wide", lambda new: (new.randn(1, 40000), new.randn(40000), 1e-6)),
        Case(
            "qwen3_next_hidden",
            lambda new: (new.randn(4096, 2048, dtype=BF16), new.randn(2048, dtype=BF16), 1e-6),
            large=True,
        ),
        Case(
            "minimax_m3_heads",
            lambda new: (new.randn(4096, 64, 128, dtype=BF16), new.randn(128, dtype=BF16), 1e-6),
            large=True,
        ),
    ),
    "add_rms_norm": (
        Case(
            "no_rows", lambda new: (new.randn(0, 64), new.randn(0, 64), new.randn(64), None, 1e-6)
        ),
        Case("one_row", lambda new: (new.randn(1, 1), new.randn(1, 1), new.randn(1), None, 1e-6)),
        Case("odd", lambda new: (new.randn(3, 65), new.randn(3, 65), None, new.randn(65), 1e-6)),
        Case(
            "ragged",
            lambda new: (
                new.randn(7, 1000, dtype=BF16),
                new.randn(7, 1000, dtype=BF16),
                new.randn(1000, dtype=BF16),
                None,
                1e-6,
            ),
        ),
        Case(
            "strided",
            lambda new: (
                new.randn(9, 256, dtype=F16)[:, 64:127],
                new.randn(9, 100, dtype=F16)[:, :63],
                new.randn(63),
                new.randn(63),
                1e-6,
            ),
        ),
        Case(
            "wide",
            lambda new: (
                new.randn(2, 40000),
                new.randn(2, 40000),
                new.randn(40000),
                new.randn(40000),
                1e-6,
            ),
        ),
        Case(
            "hidden_7168",
            lambda new: (
                new.randn(4096, 7168, dtype=BF16),
                new.randn(4096, 7168, dtype=BF16),
                new.randn(7168, dtype=BF16),
                None,
                1e-6,
            ),
            large=True,
        ),
    ),
    "layer_norm": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(64), new.randn(64), 1e-5)),
        Case("one_channel", lambda new: (new.randn(3, 1), new.randn(1), new.randn(1), 1e-5)),
        Case("odd", lambda new: (new.randn(3, 65) + 5, new.randn(65), new.randn(65), 1e-6)),
        Case("plain", lambda new: (new.randn(65, 63, dtype=F16), None, None, 1e-5)),
        Case("no_bias", lambda new: (new.randn(7, 1000, dtype=BF16), new.randn(1000), None, 1e-6)),
        Case("strided", lambda new: (new.randn(64, 9).t(), None, new.randn(64), 1e-6)),
        Case("wide", lambda new: (new.randn(2, 40000), new.randn(40000), new.randn(40000), 1e-6)),
        Case(
            "vision_1280",
            lambda new: (
                new.randn(4096, 1280, dtype=BF16),
                new.randn(1280, dtype=BF16),
                new.randn(1280, dtype=BF16),
                1e-6,
            ),
            large=True,
        ),
    ),
}
