"""Writes into a paged cache against a loop over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.kv_scatter import scatter_kv, scatter_kv_pair
from ascend_ops_core.registry import find

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn)


def written(cache: torch.Tensor, rows: torch.Tensor, slots: list[int]) -> torch.Tensor:
    expected = cache.clone()
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0:
            expected[slot // cache.shape[1], slot % cache.shape[1]] = row
    return expected


def assert_same_bytes(actual: torch.Tensor, expected: torch.Tensor) -> None:
    as_bytes = [one.contiguous().view(torch.uint8) for one in (actual, expected)]
    assert torch.equal(*as_bytes)


@pytest.mark.oracle("ascend_ops_core::scatter_kv", "a loop over tokens")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("slots", [[], [0], [7, -1, 3], [-1, -1], [19, 0, -1, 4, 5, -7]])
def test_equals_a_loop(slots: list[int], dtype: torch.dtype) -> None:
    cache = torch.randn(5, 4, 2, 3).to(dtype)
    rows = torch.randn(len(slots), 2, 3).to(dtype)
    expected = written(cache, rows, slots)
    scatter_kv(cache, rows, torch.tensor(slots, dtype=torch.int32))
    assert_same_bytes(cache, expected)


def test_padding_changes_no_byte_of_the_last_slot() -> None:
    """64 real rows padded to 128 with slot -1 while the last slot is occupied."""
    cache = torch.full((4, 16, 1, 8), 5.0)
    slots = torch.cat((torch.arange(63), torch.full((65,), -1)))
    scatter_kv(cache, torch.randn(128, 1, 8), slots)
    assert (cache[3, 15] == 5.0).all()
    assert not (cache[3, 14] == 5.0).any()


def test_views_of_a_larger_cache() -> None:
    whole = torch.randn(3, 2, 4, 10)
    before = whole.clone()
    cache = whole[..., 2:7].transpose(1, 2)  # heads before positions
    rows = torch.randn(4, 40)[:, 3:13].unflatten(1, (2, 5))
    expected = written(cache, rows, [11, -1, 0, 6])
    scatter_kv(cache, rows, torch.tensor([11, -1, 0, 6]))
    assert torch.equal(cache, expected)
    assert torch.equal(whole[..., :2], before[..., :2])
    assert torch.equal(whole[..., 7:], before[..., 7:])


@pytest.mark.oracle("ascend_ops_core::scatter_kv_pair", "a loop over tokens, for each")
def test_pair() -> None:
    slots = [3, -1, 7, 0]
    key_cache, value_cache = torch.randn(2, 4, 2, 6), torch.randn(2, 4, 2, 3)
    key, value = torch.randn(4, 2, 6), torch.randn(4, 2, 3)
    expected = written(key_cache, key, slots), written(value_cache, value, slots)
    scatter_kv_pair(key_cache, value_cache, key, value, torch.tensor(slots))
    assert torch.equal(key_cache, expected[0])
    assert torch.equal(value_cache, expected[1])


def test_refuses_before_it_writes() -> None:
    cache, rows, slots = torch.zeros(2, 4, 2, 3), torch.ones(2, 2, 3), torch.tensor([0, 1])
    bad = [
        ("cache of shape", (cache[0], rows, slots)),
        ("rows of shape", (cache, rows[:, :1], slots)),
        ("rows of torch.bfloat16", (cache, rows.bfloat16(), slots)),
        ("slots of shape", (cache, rows, slots[:1])),
        ("slots of torch.float32", (cache, rows, slots.float())),
    ]
    for message, arguments in bad:
        with pytest.raises(InvalidInputError, match=message):
            scatter_kv(*arguments)
    with pytest.raises(InvalidInputError, match="value of shape"):
        scatter_kv_pair(cache, cache, rows, rows[..., :2], slots)
    assert int(cache.count_nonzero()) == 0


@pytest.mark.parametrize(
    ("reason", "family", "wrong"),
    [
        ("slots may be negative", "A2", {"padded": True}),
        ("device family A5", "A5", {}),
        ("cache of torch.float64", "A2", {"cache": torch.zeros(2, 4, 2, 3, dtype=torch.float64)}),
        ("not contiguous", "A3", {"cache": torch.zeros(2, 2, 4, 3).transpose(1, 2)}),
        ("no rows", "A2", {"rows": torch.zeros(0, 2, 3)}),
        ("", "A2", {}),
        ("", "A3", {}),
    ],
)
def test_limits_of_scatter_nd_update(reason: str, family: str, wrong: dict[str, Any]) -> None:
    arguments = {
        "cache": torch.zeros(2, 4, 2, 3),
        "rows": torch.ones(2, 2, 3),
        "slots": torch.tensor([0, 1]),
        "padded": False,
    } | wrong
    operator = find("ascend_ops_core::scatter_kv")
    support = operator.supports("torch_npu", facts_of(family), *arguments.values())
    assert reason in support.reason
    assert bool(support) == (not reason)


@pytest.mark.parametrize(
    ("reason", "family", "wrong"),
    [
        ("slots may be negative", "A2", {"padded": True}),
        ("device family A5", "A5", {}),
        ("cache of torch.float64", "A2", {"key_cache": torch.zeros(2, 4, 2, 3).double()}),
        ("one dtype", "A2", {"value_cache": torch.zeros(2, 4, 2, 3).half()}),
        ("one number of slots", "A2", {"value_cache": torch.zeros(3, 4, 2, 3)}),
        ("not contiguous", "A3", {"key": torch.ones(2, 3, 2).transpose(1, 2)}),
        ("no rows", "A2", {"key": torch.zeros(0, 2, 3)}),
        ("", "A2", {}),
    ],
)
def test_limits_of_scatter_pa_kv_cache(reason: str, family: str, wrong: dict[str, Any]) -> None:
    arguments = {
        "key_cache": torch.zeros(2, 4, 2, 3),
        "value_cache": torch.zeros(2, 4, 2, 3),
        "key": torch.ones(2, 2, 3),
        "value": torch.ones(2, 2, 3),
        "slots": torch.tensor([0, 1]),
        "padded": False,
    } | wrong
    operator = find("ascend_ops_core::scatter_kv_pair")
    support = operator.supports("torch_npu", facts_of(family), *arguments.values())
    assert reason in support.reason
    assert bool(support) == (not reason)


def test_limits_of_the_kernel() -> None:
    operator = find("ascend_ops_core::scatter_kv")
    facts, slots = facts_of("A5"), torch.tensor([0])
    gaps = torch.zeros(2, 4, 3, 2).transpose(2, 3)
    reason = operator.supports("triton", facts, gaps, torch.ones(1, 2, 3), slots, True).reason
    assert "stride 2 inside a head" in reason
    double = torch.zeros(2, 4, 2, 3).double()
    reason = operator.supports("triton", facts, double, torch.ones(1, 2, 3), slots, True).reason
    assert "float64" in reason
