"""Inputs of paged attention: ragged requests, padding, windows, sinks, NaN that is not read."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def step(
    new: Inputs,
    requests: list[tuple[int, int]],
    heads: int,
    key_heads: int,
    width: int,
    dtype: torch.dtype = F32,
    *,
    rows: int = 16,
    padding: int = 0,
    index: torch.dtype = I32,
    sinks: bool = False,
    window: int = 0,
    host: bool = False,
    slab: bool = False,
    columns: int | None = None,
) -> tuple[Any, ...]:
    """Requests are (context, tokens of the step); rows behind a context are NaN.

    ``host`` gives the lengths to the host too; in a slab keys and values of a row lie side by side.
    """
    used = [-(-context // rows) for context, _ in requests]
    columns = columns or max(used, default=1)
    blocks = sum(used) + 1
    if slab:
        both = new.randn(blocks, rows, key_heads, 2 * width, dtype=dtype)
        caches = both.split(width, dim=-1)
    else:
        caches = tuple(new.randn(2, blocks, rows, key_heads, width, dtype=dtype).unbind(0))
    # The last block belongs to nobody.
    table = new.full(blocks - 1, max(len(requests), 1), columns, dtype=index)
    order, taken = new.permutation(blocks - 1, index), 0
    for r, ((context, _), count) in enumerate(zip(requests, used, strict=True)):
        table[r, :count] = order[taken : taken + count]
        behind = context - (count - 1) * rows
        if new.device != "meta":
            for cache in caches:
                cache[table[r, count - 1].long(), behind:] = float("nan")
                cache[-1] = float("nan")
        taken += count
    request = [r for r, (_, tokens) in enumerate(requests) for _ in range(tokens)]
    position = [p for context, tokens in requests for p in range(context - tokens, context)]
    tokens = len(request) + padding
    ends = [sum(count for _, count in requests[: r + 1]) for r in range(len(requests))]
    return (
        new.randn(tokens, heads, width, dtype=dtype),
        *caches,
        table,
        new.tensor(request + [0] * padding, index),
        new.tensor(position + [-1] * padding, index),
        new.randn(heads, dtype=dtype) if sinks else None,
        width**-0.5,
        window,
        ends if host else [],
        [context for context, _ in requests] if host else [],
    )


def _fused_heads(new: Inputs) -> tuple[Any, ...]:
    """Queries as a part of what one projection gives for queries, keys and values."""
    _, *rest = step(new, [(20, 3), (9, 1)], 4, 2, 24, BF16, slab=True, index=I64)
    return new.randn(4, 8, 24, dtype=BF16)[:, :4], *rest


def _llama(new: Inputs, requests: list[tuple[int, int]], **given: Any) -> tuple[Any, ...]:
    """Heads of Llama-3 8B and of Qwen3 8B."""
    return step(new, requests, 32, 8, 128, BF16, rows=128, **given)


CASES: dict[str, tuple[Case, ...]] = {
    "paged_attention": (
        Case("no_tokens", lambda new: step(new, [], 2, 1, 16)),
        Case("first_token", lambda new: step(new, [(1, 1)], 1, 1, 8)),
        Case("ragged", lambda new: step(new, [(17, 1), (5, 5), (33, 2)], 6, 3, 20, padding=2)),
        Case("padding_alone", lambda new: step(new, [], 2, 2, 8, padding=3, sinks=True)),
        Case("many_grouped", lambda new: step(new, [(40, 2)], 19, 1, 33, index=I64)),
        Case("fused_heads", _fused_heads),
        Case("half", lambda new: step(new, [(18, 3)], 4, 4, 24, F16, rows=32)),
        Case("split", lambda new: step(new, [(150, 1), (3, 1)], 4, 2, 16, sinks=True)),
        Case("prefill", lambda new: step(new, [(21, 21), (3, 3), (40, 9)], 2, 1, 16, padding=1)),
        Case("window", lambda new: step(new, [(70, 1), (50, 2), (4, 4)], 4, 2, 16, window=7)),
        Case(
            "window_of_prefill",
            lambda new: step(new, [(60, 30), (2, 2)], 2, 1, 16, window=19, sinks=True),
        ),
        Case(
            "host_decode",
            lambda new: step(new, [(130, 1), (7, 1), (16, 1)], 4, 2, 32, BF16, host=True),
        ),
        Case(
            "host_mixed",
            lambda new: step(
                new,
                [(140, 1), (7, 7), (30, 7), (129, 2)],
                4,
                2,
                16,
                F16,
                rows=128,
                host=True,
                padding=2,
            ),
        ),
        Case(
            "host_window",
            lambda new: step(
                new, [(150, 20), (140, 3)], 4, 2, 16, BF16, rows=128, host=True, window=30
            ),
        ),
        Case("decode", lambda new: _llama(new, [(900, 1)] * 32, columns=32), large=True),
        Case("decode_host", lambda new: _llama(new, [(900, 1)] * 32, host=True), large=True),
        Case("one_long", lambda new: _llama(new, [(30000, 1)], columns=256), large=True),
        Case("drafts", lambda new: _llama(new, [(900, 4)] * 8, columns=32), large=True),
        Case("prefill_8b", lambda new: _llama(new, [(512, 512)], columns=32), large=True),
        Case("prefill_host", lambda new: _llama(new, [(512, 512)], host=True), large=True),
        Case(
            "sinks_and_window",
            lambda new: step(
                new, [(900, 1)] * 16, 64, 8, 64, BF16, rows=128, sinks=True, window=128, columns=32
            ),
            large=True,
        ),
    ),
}
"""Heads of Llama-3 8B and Qwen3 8B (32, 8 of 128) and of gpt-oss (64, 8 of 64) among them."""
