"""Inputs of n-gram drafting."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

I32, I64 = torch.int32, torch.int64


def _case(
    name: str,
    lengths: tuple[int, ...],
    width: int,
    *,
    grams: tuple[int, int] = (1, 3),
    most: int = 4,
    limit: int = 1 << 20,
    tokens: int = 3,
    dtype: torch.dtype = I32,
    wider: bool = False,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        text = new.randint(0, tokens, len(lengths), width + 5 * wider, dtype=dtype)
        return text[:, :width], new.tensor(lengths, dtype), *grams, most, limit

    return Case(name, make, large=large)


def _far_apart(new: Inputs) -> tuple[Any, ...]:
    """The last tokens stand at two places that fall on the same lane of two tiles."""
    text = list(range(100, 20101))
    for place, following in ((5, 1), (5 + (1 << 14), 2)):
        text[place : place + 3] = [7, 8, following]
    text[19998:20000] = [7, 8]
    return new.tensor([text, text], I32), new.tensor([20000, 9], I32), 2, 5, 7, 1 << 20


CASES: dict[str, tuple[Case, ...]] = {
    "propose_ngrams": (
        _case("short_texts", (0, 1, 2, 3, 4, 5), 7, grams=(2, 4)),
        _case("ragged", (63, 1, 40, 0, 64), 64),
        _case("rows_of_a_table", (37, 12), 40, dtype=I64, wider=True),
        _case("full_context", (14, 15, 16, 17), 20, limit=16),
        _case("one_draft", (30,), 31, grams=(3, 3), most=1),
        _case("nothing_repeats", (33, 20), 33, tokens=1 << 20),
        _case("tiles", (20000, 9), 20001, grams=(2, 5), most=7, tokens=40),
        Case("far_apart", _far_apart),
        _case("served", (8192,) * 256, 32768, grams=(5, 5), most=3, large=True),
        _case("one_long_text", (131072,), 131072, grams=(2, 5), most=7, large=True),
    )
}
