"""Inputs of attention residuals."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _mix(
    new: Inputs, n: int, tokens: int, hidden: int, dtype: torch.dtype, added: bool
) -> tuple[Any, ...]:
    sources = [new.randn(tokens, hidden, dtype=dtype, scale=2.0) for _ in range(1 + added)]
    blocks = new.randn(n, tokens, hidden, dtype=dtype, scale=3.0)
    proj = new.randn(hidden, dtype=dtype, scale=hidden**-0.5)
    return (*sources, blocks, new.randn(hidden, dtype=dtype), proj, 1e-6)


def _strided(new: Inputs, added: bool) -> tuple[Any, ...]:
    """Token rows of a wider buffer, and every other block."""
    *_, weight, proj, eps = _mix(new, 1, 1, 65, F32, False)
    sources = [new.randn(7, 130)[:, ::2] for _ in range(1 + added)]
    return (*sources, new.randn(6, 7, 70)[::2, :, 5:], weight, proj, eps)


def _opposed(new: Inputs, added: bool) -> tuple[Any, ...]:
    """Scores far apart, of which the largest takes all: that of the running sum."""
    hidden = 8
    sources = [new.full(4.0, 3, hidden) for _ in range(1 + added)]
    blocks = torch.stack([new.full(v, 3, hidden) for v in (-4.0, 1e-3, 0.0)])
    return (*sources, blocks, new.full(1.0, hidden), new.full(40.0, hidden), 1e-6)


def _cases(added: bool) -> tuple[Case, ...]:
    def of(
        name: str, n: int, tokens: int, hidden: int, dtype: torch.dtype, large: bool = False
    ) -> Case:
        return Case(
            name, lambda new: _mix(new, n, tokens, hidden, dtype, added), large=large, scale=4.0
        )

    return (
        of("no_rows", 2, 0, 16, F32),
        of("no_blocks", 0, 3, 65, BF16),
        of("one_block", 1, 1, 63, F32),
        of("three_blocks", 3, 17, 13, F16),
        of("many_blocks", 9, 3, 100, BF16),
        of("many_chunks", 5, 2, 5000, F32),
        Case("strided", lambda new: _strided(new, added), scale=4.0),
        Case("opposed", lambda new: _opposed(new, added), scale=8.0),
        of("k3", 8, 4096, 7168, BF16, large=True),
        of("k3_early", 1, 4096, 7168, BF16, large=True),
        of("k3_decode", 5, 8, 7168, BF16, large=True),
    )


CASES: dict[str, tuple[Case, ...]] = {"attn_res": _cases(False), "add_attn_res": _cases(True)}
