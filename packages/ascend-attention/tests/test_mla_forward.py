"""Latent attention from queries to values against transformers' DeepSeek-V3 attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops.mla_forward import mla_forward, on_cpu, reference
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

HEADS, NOPE, ROTARY, VALUE, RANK, ROWS = 3, 6, 4, 5, 24, 4


def brute_force(
    query: torch.Tensor, rows: torch.Tensor, kv_b: torch.Tensor, position: int, scale: float
) -> torch.Tensor:
    """``[H, V]`` of one token in float64."""
    latent, rope = rows[: position + 1].double().split([RANK, ROTARY], dim=-1)
    both = torch.einsum("cl,hdl->hcd", latent, kv_b.double())
    keys = torch.cat([both[..., :NOPE], rope.expand(HEADS, -1, -1)], dim=-1)
    weights = (scale * torch.einsum("hd,hcd->hc", query.double(), keys)).softmax(-1)
    return torch.einsum("hc,hcd->hd", weights, both[..., NOPE:])


def step(
    requests: list[tuple[int, int]], dtype: torch.dtype, padding: int = 0
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Arguments for requests of (context, tokens), and the rows of each."""
    used = [-(-context // ROWS) for context, _ in requests]
    cache = torch.full((sum(used) + 1, ROWS, RANK + ROTARY), float("nan"), dtype=dtype)
    table = torch.full((max(len(requests), 1), max(used, default=1)), sum(used))
    order, rows = torch.randperm(sum(used)), []
    for r, (context, _) in enumerate(requests):
        own, order = order[: used[r]], order[used[r] :]
        table[r, : used[r]] = own
        row = torch.randn(context, RANK + ROTARY).to(dtype)
        for p in range(context):
            cache[own[p // ROWS], p % ROWS] = row[p]
        rows.append(row)
    place = [(r, p) for r, (c, n) in enumerate(requests) for p in range(c - n, c)]
    place += [(0, -1)] * padding
    query = torch.randn(len(place), HEADS, NOPE + ROTARY).to(dtype)
    arguments = {
        "q_nope": query[..., :NOPE],
        "q_rope": query[..., NOPE:],
        "latents": cache[..., :RANK],
        "ropes": cache[..., RANK:],
        "kv_b": (torch.randn(HEADS, NOPE + VALUE, RANK) / RANK**0.5).to(dtype),
        "block_table": table,
        "request": torch.tensor([r for r, _ in place], dtype=torch.int64),
        "position": torch.tensor([p for _, p in place], dtype=torch.int64),
    }
    return arguments, rows


@pytest.mark.oracle("ascend_attention::mla_forward", "brute force in float64, token by token")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(
    "requests",
    [[], [(1, 1)], [(9, 1), (3, 3)], [(30, 30), (21, 1)], [(60, 17), (18, 18), (5, 2)]],
)
def test_both_orders_equal_brute_force(
    requests: list[tuple[int, int]],
    padding: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the operator chooses, and each order whatever it chooses; chunks of four tokens."""
    torch.manual_seed(len(requests))
    given, rows = step(requests, dtype, padding)
    monkeypatch.setattr(reference, "_LEAST_CHUNK", 1)
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(reference, "_TILE_ELEMENTS", 5 * HEADS * ROWS)
    for run in (mla_forward, reference.mla_forward, on_cpu.absorbed):
        out = run(**given, scale=0.3)
        assert out.dtype == dtype
        assert out.shape == (len(given["position"]), HEADS, VALUE)
        query = torch.cat([given["q_nope"], given["q_rope"]], dim=-1)
        places = zip(given["request"].tolist(), given["position"].tolist(), strict=True)
        for t, (r, p) in enumerate(places):
            if p < 0:
                assert not out[t].any()
                continue
            expected = brute_force(query[t], rows[r], given["kv_b"], p, 0.3)
            assert_close(out[t], expected, scale=4)


def test_long_prompts_are_expanded_and_decodes_absorbed() -> None:
    given, _ = step([(40, 30), (40, 1), (12, 12)], torch.float32)
    names = ("q_nope", "kv_b", "request", "position")
    assert on_cpu._long_requests(*(given[name] for name in names)) == [0]


def test_values_behind_keys_are_required() -> None:
    given, _ = step([(4, 1)], torch.float32)
    with pytest.raises(InvalidInputError, match="6 plain channels"):
        mla_forward(**given | {"kv_b": given["kv_b"][:, :NOPE]}, scale=1.0)
    with pytest.raises(InvalidInputError, match="kv_b"):
        mla_forward(**given | {"kv_b": given["kv_b"][:2]}, scale=1.0)
