"""Sparse attention over packed rows against a dense brute force that decodes bytes itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops.packed_rows import packed_bytes, quantize_kv_rows
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.ops.sparse_attention import RowSource, sparse_attention
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

HEADS = 3


def source(tokens: int, rows: int, share: float | None, width: int, rotary: int) -> RowSource:
    """Rows of a strided cache; the last block is NaN, and what is not valid points there."""
    size = packed_bytes(width, rotary)
    slab = torch.full((5, 4 * size + 6), 255, dtype=torch.uint8)
    cache = slab[:, 2 : 2 + 4 * size].unflatten(1, (4, size))
    place = torch.randperm(16)
    quantize_kv_rows(cache, torch.randn(16, width), place // 4, place % 4, rotary)
    index = RowIndex(torch.randint(0, 4, (tokens, rows)), torch.randint(0, 4, (tokens, rows)))
    if share is None:
        return RowSource(cache, index, None, rotary)
    valid = torch.rand(tokens, rows) < share
    index.block[~valid] = 4
    return RowSource(cache, index, valid, rotary)


def decoded(record: torch.Tensor, width: int, rotary: int) -> torch.Tensor:
    """``[width]`` float64 of one record, value by value."""
    quantised = width - rotary
    row = record[:quantised].view(torch.float8_e4m3fn).double()
    for i in range(quantised):
        row[i] *= 2.0 ** (int(record[width + rotary + i // 64]) - 127)
    rotated = record[quantised : width + rotary].clone().view(torch.bfloat16).double()
    return torch.cat((row, rotated))


def brute_force(
    query: torch.Tensor, sources: list[RowSource], sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    out = torch.zeros(query.shape, dtype=torch.float64)
    for t in range(query.shape[0]):
        rows = [
            decoded(
                one.cache[one.index.block[t, i], one.index.offset[t, i]],
                query.shape[2],
                one.rotary or 0,
            )
            for one in sources
            for i in range(one.width)
            if one.valid is None or one.valid[t, i]
        ]
        for h in range(query.shape[1]):
            logits = [float(query[t, h].double() @ row) * scale for row in rows]
            weights = torch.tensor([*logits, float(sinks[h])], dtype=torch.float64).softmax(0)
            for weight, row in zip(weights, rows, strict=False):
                out[t, h] += weight * row
    return out


@pytest.mark.oracle("ascend_attention::sparse_attention", "decoded records, brute force")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize(("width", "rotary"), [(2, 0), (64, 16), (201, 7)])
@pytest.mark.parametrize(
    "shape",
    [[(5, None)], [(5, 0.6)], [(5, 0.7), (3, None)], [(4, 0.5), (0, None), (7, 0.5)]],
    ids=["full", "masked", "both", "empty source between"],
)
def test_equals_dense(
    shape: list[tuple[int, float | None]],
    width: int,
    rotary: int,
    tokens: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(tokens)
    sources = [source(tokens, rows, share, width, rotary) for rows, share in shape]
    query, sinks = torch.randn(tokens, HEADS, width).to(dtype), torch.randn(HEADS)
    got = sparse_attention(query, sources, sinks, 0.3)
    assert got.dtype == dtype
    assert_close(got, brute_force(query, sources, sinks, 0.3))


def test_the_registered_operator_unpacks_too() -> None:
    one = source(3, 6, 0.7, 64, 16)
    query, sinks = torch.randn(3, HEADS, 64), torch.randn(HEADS)
    got = torch.ops.ascend_attention.sparse_attention(
        query, [one.cache], [one.index.block], [one.index.offset], [one.valid], sinks, 0.3, 16
    )
    assert torch.equal(got, sparse_attention(query, [one], sinks, 0.3))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rotary": None}, "cache of shape"),
        ({"cache": torch.zeros(5, 4, 80, dtype=torch.uint8)}, "80 bytes.*take 81"),
        ({"cache": torch.zeros(5, 4, 128)}, "packed of torch.float32"),
        ({"rotary": 15}, "64 values, 15 of them"),
    ],
)
def test_caches_that_hold_no_such_rows_are_refused(wrong: dict[str, Any], message: str) -> None:
    one = source(2, 3, None, 64, 16)
    given = {"cache": one.cache, "index": one.index, "valid": None, "rotary": 16} | wrong
    with pytest.raises(InvalidInputError, match=message):
        sparse_attention(torch.randn(2, HEADS, 64), [RowSource(**given)], torch.zeros(HEADS), 1.0)


def test_packed_and_plain_rows_are_not_mixed() -> None:
    packed = source(2, 3, None, 64, 16)
    plain = RowSource(torch.randn(5, 4, 64), packed.index, None)
    for sources in ([packed, plain], [plain, packed]):
        with pytest.raises(InvalidInputError, match="same form of rows"):
            sparse_attention(torch.randn(2, HEADS, 64), sources, torch.zeros(HEADS), 1.0)


@pytest.mark.parametrize(
    ("family", "dtype", "reason"),
    [
        ("A5", torch.bfloat16, ""),
        ("A5", torch.float32, ""),
        ("A5", torch.float16, "does not hold their values"),
        ("A3", torch.bfloat16, "A3 has no torch.float8_e4m3fn"),
    ],
)
def test_limits_of_the_kernel(family: str, dtype: torch.dtype, reason: str) -> None:
    place = torch.empty(2, 3, dtype=torch.int64, device="meta")
    cache = torch.empty(4, 8, 640, dtype=torch.uint8, device="meta")
    support = find("ascend_attention::sparse_attention").supports(
        "triton",
        facts_of(family),
        torch.empty(2, 64, 512, dtype=dtype, device="meta"),
        [cache],
        [place],
        [place],
        [None],
        torch.empty(64, device="meta"),
        0.1,
        64,
    )
    assert reason in support.reason
    assert bool(support) == (not reason)
