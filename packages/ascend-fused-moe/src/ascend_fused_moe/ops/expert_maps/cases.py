"""Inputs of the mapping to physical experts."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

I32, I64 = torch.int32, torch.int64


def _given(
    new: Inputs,
    tokens: int,
    experts: int,
    top_k: int,
    places: int,
    period: int,
    dtype: torch.dtype,
    recorded: bool,
    unpadded: int | None,
    offset: int,
) -> tuple[Any, ...]:
    return (
        new.randint(0, experts, tokens, top_k, dtype=dtype),
        new.randint(0, places, experts, period, dtype=I32),
        new.randint(0, 100, places, dtype=I32) if recorded else None,
        None if unpadded is None else new.tensor([unpadded], I32),
        offset,
    )


def _case(
    name: str,
    tokens: int,
    experts: int,
    top_k: int,
    places: int,
    period: int = 1,
    dtype: torch.dtype = I32,
    *,
    recorded: bool = True,
    unpadded: int | None = None,
    offset: int = 0,
    large: bool = False,
) -> Case:
    sizes = tokens, experts, top_k, places, period, dtype, recorded, unpadded, offset
    return Case(name, lambda new: _given(new, *sizes), large=large)


def _no_choices(new: Inputs) -> tuple[Any, ...]:
    """Ids that are none, and places that are none."""
    ids = new.tensor([[-1, 4], [5, 2], [-7, 2**31 - 1], [0, 1]], I32)
    return ids, new.tensor([[0, 9], [1, 1], [-1, 3], [4, 4], [5, -1]], I32), *_rest(new)


def _rest(new: Inputs) -> tuple[Any, ...]:
    return new.full(0, 10, dtype=I32), None, 3


CASES: dict[str, tuple[Case, ...]] = {
    "map_to_physical_and_record": (
        _case("no_tokens", 0, 5, 2, 6),
        _case("no_choices_each", 3, 5, 0, 6),
        _case("one", 1, 1, 1, 1),
        _case("odd", 3, 7, 3, 9, 4, offset=5),
        _case("many", 65, 60, 6, 66, 12, I64),
        _case("not_recorded", 17, 5, 2, 6, 2, recorded=False),
        _case("padded", 63, 9, 3, 12, 6, unpadded=41),
        _case("all_padded", 5, 9, 3, 12, 6, I64, unpadded=0),
        _case("unpadded_beyond", 5, 9, 3, 12, 6, unpadded=9),
        _case("one_expert", 40, 1, 9, 4, 4),
        Case("no_choices", _no_choices),
        Case(
            "strided",
            lambda new: (
                new.randint(0, 7, 9, 12)[:, 2:5],
                new.randint(0, 8, 4, 14, dtype=I32).T[::2],
                new.full(0, 8, dtype=I32),
                new.tensor([7], I64),
                1,
            ),
        ),
        _case("v4_flash", 4096, 256, 6, 288, 12, unpadded=4000, large=True),
        _case("v4_pro", 4096, 384, 6, 448, 12, I64, unpadded=4000, large=True),
        _case("v4_pro_decode", 16, 384, 6, 448, 12, unpadded=13, large=True),
        _case("eight_of_256", 64, 256, 8, 256, 1, I64, large=True),
    ),
}
