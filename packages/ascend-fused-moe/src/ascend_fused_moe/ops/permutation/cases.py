"""Inputs of the permutation by experts."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

F32, BF16, F16, I32, I64 = torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64


def _permute(
    name: str,
    tokens: int,
    hidden: int,
    top_k: int,
    experts: int,
    dtype: torch.dtype = F32,
    ids: torch.dtype = I64,
    *,
    beyond: int = 0,
    large: bool = False,
) -> Case:
    """``beyond``: ids reach from ``-beyond`` to ``experts + beyond``."""

    def make(new: Inputs) -> tuple[Any, ...]:
        chosen = new.randint(-beyond, experts + beyond, tokens, top_k, dtype=ids)
        return new.randn(tokens, hidden, dtype=dtype), chosen, experts

    # What lies behind the rows of experts is not said to be anything.
    return Case(name, make, large=large, unspecified=("torch_npu",) if beyond else ())


def _combine(
    name: str,
    tokens: int,
    hidden: int,
    top_k: int,
    dtype: torch.dtype = F32,
    *,
    complete: bool = True,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        count = tokens * top_k
        index = new.permutation(count).view(tokens, top_k)
        if not complete:
            index = torch.where(index % 3 == 0, -1, index)
        rows, weights = new.randn(count, hidden, dtype=dtype), new.rand(tokens, top_k)
        return rows, index, weights, complete

    return Case(name, make, large=large, scale=float(max(top_k, 1)))


CASES: dict[str, tuple[Case, ...]] = {
    "permute_rows": (
        _permute("no_tokens", 0, 8, 2, 5),
        _permute("no_choices", 3, 8, 0, 5),
        _permute("one", 1, 1, 1, 1),
        _permute("odd", 17, 19, 3, 7),
        _permute("one_expert", 9, 16, 2, 1, BF16),
        _permute("half", 33, 24, 4, 60, F16, I32),
        _permute("others", 21, 8, 3, 5, beyond=4),
        _permute("others_of_32_bits", 5, 8, 3, 5, BF16, I32, beyond=4),
        _permute("integers", 7, 4, 2, 3, I32),
        _permute("v4_flash", 4096, 4096, 6, 256, BF16, large=True),
        _permute("v4_pro_of_32", 4096, 7168, 6, 12, BF16, beyond=180, large=True),
    ),
    "combine_rows": (
        _combine("no_tokens", 0, 8, 2),
        _combine("no_choices", 3, 8, 0),
        _combine("one", 1, 1, 1),
        _combine("odd", 17, 19, 3),
        _combine("brain", 33, 24, 6, BF16),
        _combine("half", 5, 16, 4, F16),
        _combine("not_all", 21, 8, 3, complete=False),
        _combine("v4_flash", 4096, 4096, 6, BF16, large=True),
        _combine("v4_pro", 4096, 7168, 6, BF16, complete=False, large=True),
    ),
}
