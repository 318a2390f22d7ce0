"""Inputs of the batch-invariant reductions."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

CASES: dict[str, tuple[Case, ...]] = {
    "mean_batch_invariant": (
        Case("no_rows", lambda new: (new.randn(0, 8), -1, False)),
        Case("one", lambda new: (new.randn(5, 1), 1, True)),
        Case("odd", lambda new: (new.randn(3, 65), -1, False)),
        Case("rows", lambda new: (new.randn(65, 63, dtype=F16), 1, True)),
        Case("first_axis", lambda new: (new.randn(65, 70), 0, False)),
        Case("middle", lambda new: (new.randn(3, 100, 65, dtype=BF16), 1, True)),
        Case("strided", lambda new: (new.randn(9, 256)[:, 64:191], -1, False)),
        Case("wide", lambda new: (new.randn(2, 40000), -1, False)),
        Case("hidden", lambda new: (new.randn(4096, 7168, dtype=BF16), -1, True), large=True),
        Case("pooled", lambda new: (new.randn(64, 1000, 4096, dtype=BF16), 1, False), large=True),
    ),
    "rms_norm_batch_invariant": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(64), 1e-6)),
        Case("one_channel", lambda new: (new.randn(5, 1), new.randn(1), 1e-6)),
        Case("odd", lambda new: (new.randn(3, 65, scale=3.0), new.randn(65), 1e-6)),
        Case("unweighted", lambda new: (new.randn(65, 63, dtype=F16), None, 1e-5)),
        Case("ragged", lambda new: (new.randn(2, 7, 1000, dtype=BF16), new.randn(1000), 1e-6)),
        Case("strided", lambda new: (new.randn(9, 256)[:, 64:191], new.randn(127), 1e-6)),
        Case("wide", lambda new: (new.randn(2, 40000), new.randn(40000), 1e-6)),
        Case(
            "hidden",
            lambda new: (new.randn(4096, 7168, dtype=BF16), new.randn(7168, dtype=BF16), 1e-6),
            large=True,
        ),
        Case(
            "flash_hidden",
            lambda new: (new.randn(64, 4096, dtype=BF16), new.randn(4096, dtype=BF16), 1e-6),
            large=True,
        ),
    ),
    "softmax_batch_invariant": (
        Case("no_rows", lambda new: (new.randn(0, 8), -1)),
        Case("one", lambda new: (new.randn(5, 1), -1)),
        Case("odd", lambda new: (new.randn(3, 65, scale=5.0), -1)),
        Case("rows", lambda new: (new.randn(65, 63, dtype=F16), 1)),
        Case("first_axis", lambda new: (new.randn(65, 70, dtype=BF16), 0)),
        Case("strided", lambda new: (new.randn(9, 200)[:, 3:68], -1)),
        Case("wide", lambda new: (new.randn(2, 40000), -1)),
        Case("router", lambda new: (new.randn(4096, 384), -1), large=True),
        Case("vocabulary", lambda new: (new.randn(64, 151936, dtype=BF16), -1), large=True),
    ),
}
