"""Inputs of the activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _gated(*rest: Any) -> tuple[Case, ...]:
    """The widths and dtypes that every gated activation meets."""
    return (
        Case("no_rows", lambda new: (new.randn(0, 64), *rest)),
        Case("one_channel", lambda new: (new.randn(3, 2, scale=4.0), *rest)),
        Case("odd", lambda new: (new.randn(65, 2 * 63, scale=6.0), *rest), scale=30.0),
        Case("ragged", lambda new: (new.randn(2, 3, 2 * 1000, dtype=BF16, scale=6.0), *rest)),
        Case("strided", lambda new: (new.randn(9, 256, dtype=F16)[:, 7:137], *rest)),
        Case("wide", lambda new: (new.randn(1, 2 * 20001), *rest)),
        Case("beyond", _beyond(*rest), scale=100.0),
        _large("v4_flash", 4096, 2048, BF16, *rest),
        _large("v4_pro", 4096, 3072, BF16, *rest),
        _large("minimax_m3", 2048, 1536, F16, *rest),
        _large("dense", 1024, 18432, BF16, *rest),
        _large("decode", 8, 2048, F32, *rest),
    )


def _beyond(*rest: Any) -> Callable[[Inputs], tuple[Any, ...]]:
    """Gate and up at -50 and 50 (bug case 7), halves and alternating channels alike."""
    return lambda new: (
        new.tensor([[-50.0, -50.0, 50.0, 50.0, -50.0, 50.0, -50.0, 50.0]], F32),
        *rest,
    )


def _large(name: str, rows: int, width: int, dtype: torch.dtype, *rest: Any) -> Case:
    return Case(name, lambda new: (new.randn(rows, 2 * width, dtype=dtype), *rest), large=True)


CASES: dict[str, tuple[Case, ...]] = {
    "silu_and_mul": _gated(),
    "silu_and_mul_with_clamp": (
        *_gated(10.0),
        Case("unlimited", lambda new: (new.randn(5, 48, scale=4.0), None)),
        Case("limit_0", lambda new: (new.randn(5, 48, scale=4.0), 0.0)),
    ),
    "swiglu_oai_and_mul": (
        *_gated(1.702, 7.0, 1.0, True),
        Case("halves", lambda new: (new.randn(5, 126, scale=4.0), 1.702, 7.0, 1.0, False)),
    ),
    "swiglustep_and_mul": _gated(7.0),
    "situ_and_mul": (
        *_gated(4.0, 30.0),
        Case("unbounded", lambda new: (new.randn(5, 126, scale=4.0), 2.0, None), scale=8.0),
        Case("narrow", lambda new: (new.randn(3, 34, dtype=BF16, scale=3.0), 0.125, 0.5)),
    ),
    "quick_gelu": (
        Case("nothing", lambda new: (new.randn(0, 5),)),
        Case("one", lambda new: (new.randn(1),)),
        Case("odd", lambda new: (new.randn(63, 65, scale=4.0),)),
        Case("many_blocks", lambda new: (new.randn(3, 7001, scale=4.0),)),
        Case("ragged", lambda new: (new.randn(3, 1000, dtype=BF16),)),
        Case("strided", lambda new: (new.randn(9, 130, dtype=F16)[:, ::2],)),
        Case("clip_vision", lambda new: (new.randn(8 * 257, 4096, dtype=BF16),), large=True),
    ),
}
