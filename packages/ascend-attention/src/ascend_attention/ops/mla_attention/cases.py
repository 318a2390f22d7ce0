"""Inputs of the latent attention: ragged requests, padding, slabs, NaN where nothing is read."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.paged_rows.cases import cache_in_slab

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def step(
    new: Inputs,
    requests: list[tuple[int, int]],
    heads: int,
    rank: int,
    rotary: int,
    dtype: torch.dtype = F32,
    *,
    rows: int = 16,
    padding: int = 0,
    index: torch.dtype = I64,
    slab: bool = True,
    columns: int | None = None,
    host: bool = False,
) -> tuple[Any, ...]:
    """Requests are (context, tokens of the step); rows behind a context are NaN.

    ``host`` gives the lengths to the host too.
    """
    used = [-(-context // rows) for context, _ in requests]
    columns = columns or max(used, default=1)
    blocks = sum(used) + 1
    make = cache_in_slab if slab else _alone
    latents = make(new, blocks, rows, rank, dtype)
    ropes = make(new, blocks, rows, rotary, dtype)
    # The last block belongs to nobody.
    table = new.full(blocks - 1, max(len(requests), 1), columns, dtype=index)
    order, taken = new.permutation(blocks - 1, index), 0
    for r, ((context, _), count) in enumerate(zip(requests, used, strict=True)):
        table[r, :count] = order[taken : taken + count]
        behind = context - (count - 1) * rows
        if new.device != "meta":
            for cache in (latents, ropes):
                cache[table[r, count - 1].long(), behind:] = float("nan")
                cache[-1] = float("nan")
        taken += count
    request = [r for r, (_, tokens) in enumerate(requests) for _ in range(tokens)]
    position = [p for context, tokens in requests for p in range(context - tokens, context)]
    tokens = len(request) + padding
    return (
        new.randn(tokens, heads, rank, dtype=dtype),
        new.randn(tokens, heads, rotary, dtype=dtype),
        latents,
        ropes,
        table,
        new.tensor(request + [0] * padding, index),
        new.tensor(position + [-1] * padding, index),
        (rank + rotary) ** -0.5,
        [sum(count for _, count in requests[: r + 1]) for r in range(len(requests))]
        if host
        else [],
        [context for context, _ in requests] if host else [],
    )


def _alone(new: Inputs, blocks: int, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return new.randn(blocks, rows, width, dtype=dtype)


def _transposed_heads(new: Inputs) -> tuple[Any, ...]:
    """Queries as batched products leave them, heads first, and as a part of wider heads."""
    _, _, *rest = step(new, [(20, 3), (9, 1)], 3, 24, 8, BF16, index=I32)
    q_latent = new.randn(3, 4, 24, dtype=BF16).transpose(0, 1)
    return q_latent, new.randn(4, 3, 20, dtype=BF16)[..., 12:], *rest


def _v3(
    new: Inputs,
    requests: list[tuple[int, int]],
    heads: int,
    columns: int | None = None,
    rows: int = 128,
    **given: Any,
) -> tuple[Any, ...]:
    return step(
        new, requests, heads, 512, 64, BF16, rows=rows, index=I32, slab=False, columns=columns,
        **given,
    )  # fmt: skip


CASES: dict[str, tuple[Case, ...]] = {
    "mla_attention": (
        Case("no_tokens", lambda new: step(new, [], 2, 16, 4)),
        Case("first_token", lambda new: step(new, [(1, 1)], 1, 8, 2)),
        Case("ragged", lambda new: step(new, [(17, 1), (5, 5), (33, 2)], 3, 20, 6, padding=2)),
        Case("padding_alone", lambda new: step(new, [], 2, 8, 4, padding=3)),
        Case("many_heads", lambda new: step(new, [(40, 2)], 19, 33, 10, index=I32)),
        Case("transposed_heads", _transposed_heads),
        Case("half", lambda new: step(new, [(18, 3)], 4, 24, 8, F16, rows=32)),
        Case("split", lambda new: step(new, [(150, 1), (3, 1)], 2, 16, 8)),
        Case("apart", lambda new: step(new, [(50, 4)], 2, 16, 8, BF16, slab=False)),
        Case("host", lambda new: _v3(new, [(20, 1), (9, 1)], 2, rows=16, host=True)),
        Case(
            "host_drafts",
            lambda new: _v3(new, [(20, 3), (9, 1)], 4, rows=16, host=True, padding=2),
        ),
        Case("v3_tp8", lambda new: _v3(new, [(900, 1)] * 32, 16, 32), large=True),
        Case("v3_dp", lambda new: _v3(new, [(8000, 2)] * 4, 128, 1280), large=True),
        Case("v3_prefill", lambda new: _v3(new, [(512, 512)], 16, 64), large=True),
    ),
}
