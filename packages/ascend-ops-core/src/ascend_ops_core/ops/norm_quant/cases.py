"""Inputs of the norms that quantise their result."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16 = torch.bfloat16, torch.float16


def _padded(new: Inputs, rows: int, width: int) -> torch.Tensor:
    """Rows of which every second one is zeros, as padding leaves them.

    Not bfloat16: Triton's interpreter cuts where it should round to it, and int8 shows that.
    """
    x = new.randn(rows, width, dtype=F16)
    if new.device != "meta":
        x[::2] = 0
    return x


CASES: dict[str, tuple[Case, ...]] = {
    "rms_norm_dynamic_quant": (
        Case("no_rows", lambda new: (new.randn(0, 64), new.randn(64), None, None, 1e-6)),
        Case("one_channel", lambda new: (new.randn(3, 1), new.randn(1), None, None, 1e-6)),
        Case("odd", lambda new: (new.randn(3, 65), new.randn(65), new.randn(65), None, 1e-6)),
        Case(
            "smoothed",
            lambda new: (
                new.randn(65, 63, dtype=F16),
                new.randn(63, dtype=F16),
                None,
                new.rand(63, dtype=F16),
                1e-6,
            ),
        ),
        Case(
            "padding_rows", lambda new: (_padded(new, 5, 1000), new.randn(1000), None, None, 1e-6)
        ),
        Case(
            "strided",
            lambda new: (new.randn(9, 256)[:, 64:191], None, new.randn(127), new.rand(127), 1e-6),
        ),
        Case(
            "wide",
            lambda new: (new.randn(2, 20000), new.randn(20000), new.randn(20000), None, 1e-6),
        ),
        Case(
            "hidden_7168",
            lambda new: (
                new.randn(4096, 7168, dtype=BF16),
                new.randn(7168, dtype=BF16),
                None,
                None,
                1e-6,
            ),
            large=True,
        ),
        Case(
            "mla_query_1536",
            lambda new: (
                new.randn(4096, 1536, dtype=BF16),
                new.randn(1536, dtype=BF16),
                new.randn(1536, dtype=BF16),
                None,
                1e-6,
            ),
            large=True,
        ),
    ),
    "add_rms_norm_dynamic_quant": (
        Case(
            "no_rows",
            lambda new: (new.randn(0, 8), new.randn(0, 8), new.randn(8), None, None, 1e-6),
        ),
        Case(
            "one_row",
            lambda new: (new.randn(1, 63), new.randn(1, 63), None, None, new.rand(63), 1e-6),
        ),
        Case(
            "odd",
            lambda new: (
                new.randn(3, 65, dtype=F16),
                new.randn(3, 65, dtype=F16),
                new.randn(65, dtype=F16),
                new.randn(65, dtype=F16),
                None,
                1e-6,
            ),
        ),
        Case(
            "strided",
            lambda new: (
                new.randn(63, 100, dtype=F16)[:, 1:64],
                new.randn(63, 9, 7, dtype=F16).flatten(1),
                new.randn(63),
                None,
                new.rand(63),
                1e-6,
            ),
        ),
        Case(
            "padding_rows",
            lambda new: (
                _padded(new, 7, 1000),
                _padded(new, 7, 1000),
                new.randn(1000, dtype=F16),
                None,
                None,
                1e-6,
            ),
        ),
        Case(
            "wide",
            lambda new: (
                new.randn(2, 20000, dtype=F16),
                new.randn(2, 20000, dtype=F16),
                new.randn(20000),
                None,
                new.rand(20000),
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
                None,
                1e-6,
            ),
            large=True,
        ),
    ),
}
