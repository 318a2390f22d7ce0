"""Inputs of what ranks exchange: ranks without a row, which send NaN, odd widths, lone heads."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.context_parallel.layout import packed_views, packed_words

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NAN, NOTHING = float("nan"), float("-inf")


def _states(
    new: Inputs,
    tokens: int,
    heads: int,
    width: int,
    ranks: int,
    dtype: torch.dtype = F32,
    empty: float = 0.3,
) -> tuple[Any, ...]:
    outs = new.randn(tokens, heads, width, dtype=dtype)
    absent = new.rand(tokens, heads) < empty
    lses = new.randn(tokens, heads, scale=3).masked_fill(absent, NOTHING)
    return outs, lses, ranks


def _packed(
    new: Inputs,
    ranks: int,
    tokens: int,
    heads: int,
    width: int,
    dtype: torch.dtype = F32,
    empty: float = 0.3,
) -> tuple[Any, ...]:
    """The words between values and logarithm are those of no number."""
    shape = (ranks, tokens, heads)
    packed = new.full(-1, *shape, packed_words(width, dtype), dtype=torch.int32)
    values, logarithms = packed_views(packed, width, dtype)
    absent = new.rand(*shape) < empty
    outs = new.randn(*shape, width, dtype=dtype)
    values.copy_(outs.masked_fill(absent.unsqueeze(-1), NAN))
    logarithms.copy_(new.randn(*shape, scale=3).masked_fill(absent, NOTHING))
    return packed, width, dtype


def _selected(
    new: Inputs,
    tokens: int,
    columns: int,
    context: int,
    ranks: int,
    rank: int,
    interleave: int,
    *,
    used: int | None = None,
) -> tuple[Any, ...]:
    """Every query selects ``used`` tokens of a context; the others' places are empty."""
    used = min(columns, context) if used is None else used
    chosen = new.full(-1, tokens, columns, dtype=torch.int32)
    if new.device != "meta":
        for t in range(tokens):
            chosen[t, :used] = new.permutation(context, torch.int32)[:used]
    return chosen, ranks, rank, interleave, columns


CASES: dict[str, tuple[Case, ...]] = {
    "pack_attention_states": (
        Case("no_tokens", lambda new: _states(new, 0, 4, 8, 2)),
        Case("one", lambda new: _states(new, 1, 1, 1, 1)),
        Case("odd", lambda new: _states(new, 5, 9, 33, 3)),
        Case("odd_half", lambda new: _states(new, 3, 10, 7, 5, F16)),
        Case("bfloat16", lambda new: _states(new, 7, 6, 130, 2, BF16)),
        Case("v3_dcp8", lambda new: _states(new, 64, 128, 512, 8, BF16), large=True),
        Case("glm5_dcp8", lambda new: _states(new, 64, 64, 512, 8, BF16), large=True),
    ),
    "merge_packed_states": (
        Case("no_tokens", lambda new: _packed(new, 2, 0, 4, 8)),
        Case("one_rank", lambda new: _packed(new, 1, 1, 1, 1, empty=0.0)),
        Case("odd", lambda new: _packed(new, 3, 5, 3, 33)),
        Case("odd_half", lambda new: _packed(new, 5, 3, 2, 7, F16)),
        Case("no_rows_anywhere", lambda new: _packed(new, 4, 3, 2, 10, empty=1.1)),
        Case("bfloat16", lambda new: _packed(new, 2, 7, 3, 130, BF16, empty=0.5)),
        Case("v3_dcp8", lambda new: _packed(new, 8, 64, 16, 512, BF16), large=True),
        Case("glm5_dcp8", lambda new: _packed(new, 8, 64, 8, 512, BF16), large=True),
    ),
    "local_tokens": (
        Case("no_queries", lambda new: _selected(new, 0, 3, 9, 2, 0, 1)),
        Case("no_places", lambda new: _selected(new, 2, 0, 9, 2, 0, 1)),
        Case("nothing_selected", lambda new: _selected(new, 3, 5, 9, 2, 0, 1, used=0)),
        Case("none_here", lambda new: _selected(new, 2, 4, 4, 3, 2, 2)),
        Case("all", lambda new: _selected(new, 3, 17, 17, 2, 1, 1)),
        Case("odd", lambda new: _selected(new, 5, 65, 300, 3, 1, 5, used=60)),
        Case("whole_blocks", lambda new: _selected(new, 2, 33, 513, 4, 3, 16)),
        Case("v32_dcp8", lambda new: _selected(new, 64, 2048, 65536, 8, 3, 1), large=True),
        Case("v32_dcp8_blocks", lambda new: _selected(new, 64, 2048, 65536, 8, 3, 128), large=True),
    ),
}
