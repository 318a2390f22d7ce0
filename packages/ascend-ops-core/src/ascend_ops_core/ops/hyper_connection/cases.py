"""Inputs of the hyper-connections."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ITERATIONS = 20


def _pre(new: Inputs, tokens: int, n: int, hidden: int, dtype: torch.dtype) -> tuple[Any, ...]:
    mixes, width = (2 + n) * n, n * hidden
    return (
        new.randn(tokens, n, hidden, dtype=dtype),
        new.randn(mixes, width, scale=width**-0.5),
        new.randn(3),
        new.randn(mixes, scale=0.5),
        ITERATIONS,
        1e-6,
        1e-6,
        new.randn(hidden),
    )


def _post(new: Inputs, tokens: int, n: int, hidden: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (
        new.randn(tokens, hidden, dtype=dtype),
        new.randn(tokens, n, hidden, dtype=dtype),
        new.rand(tokens, n),
        new.rand(tokens, n, n),
    )


def _head(new: Inputs, tokens: int, n: int, hidden: int, dtype: torch.dtype) -> tuple[Any, ...]:
    width = n * hidden
    return (
        new.randn(tokens, n, hidden, dtype=dtype),
        new.randn(n, width, scale=width**-0.5),
        new.randn(1),
        new.randn(n),
        1e-6,
        1e-6,
    )


def _cases(make: Any, wide: int) -> tuple[Case, ...]:
    return (
        Case("no_rows", lambda new: make(new, 0, 4, 8, F32)),
        Case("one_stream", lambda new: make(new, 3, 1, 65, F32)),
        Case("two_streams", lambda new: make(new, 1, 2, 63, BF16)),
        Case("three_streams", lambda new: make(new, 17, 3, 13, F16)),
        Case("four_streams", lambda new: make(new, 3, 4, 1000, F32)),
        Case("wide", lambda new: make(new, 1, 2, wide, BF16)),
        Case("v4_flash", lambda new: make(new, 4096, 4, 4096, BF16), large=True),
        Case("v4_pro", lambda new: make(new, 4096, 4, 7168, BF16), large=True),
        Case("v4_pro_decode", lambda new: make(new, 1, 4, 7168, BF16), large=True),
    )


def _strided(new: Inputs) -> tuple[Any, ...]:
    output, streams, post, comb = _post(new, 5, 4, 64, F32)
    return output.t().contiguous().t(), streams[:, :, ::2].repeat(1, 1, 2), post, comb


def _every_other_channel(make: Any) -> Case:
    """A case whose streams are a strided view."""

    def inputs(new: Inputs) -> tuple[Any, ...]:
        return (new.randn(5, 3, 26, dtype=F16)[:, :, ::2], *make(new, 5, 3, 13, F16)[1:])

    return Case("strided", inputs)


CASES: dict[str, tuple[Case, ...]] = {
    "hc_pre": (*_cases(_pre, 9000), _every_other_channel(_pre)),
    "hc_post": (*_cases(_post, 9000), Case("strided", _strided)),
    "hc_head": (*_cases(_head, 9000), _every_other_channel(_head)),
    "sinkhorn": (
        Case("no_rows", lambda new: (new.randn(0, 4, 4), ITERATIONS, 1e-6)),
        Case("one_stream", lambda new: (new.randn(3, 1, 1), 2, 1e-6)),
        Case("three_streams", lambda new: (new.randn(65, 3, 3), ITERATIONS, 1e-6)),
        Case("four_streams", lambda new: (new.randn(1, 63, 4, 4, scale=3.0), ITERATIONS, 1e-6)),
        Case("strided", lambda new: (new.randn(3, 3, 7).permute(2, 0, 1), ITERATIONS, 1e-6)),
        Case("one_iteration", lambda new: (new.randn(1000, 3, 3), 1, 1e-3)),
        Case("eight_streams", lambda new: (new.randn(4096, 8, 8), ITERATIONS, 1e-6), large=True),
        Case("v4", lambda new: (new.randn(4096, 4, 4), ITERATIONS, 1e-6), large=True),
    ),
}
