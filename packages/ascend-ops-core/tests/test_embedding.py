"""The vocabulary range of a rank, against brute force and vLLM's layout."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of
from ascend_ops_core.ops.embedding import mask_vocab_range, npu


def brute_force(ids: list[int], held: dict[int, int]) -> tuple[list[int], list[bool]]:
    return [held.get(one, 0) for one in ids], [one not in held for one in ids]


@pytest.mark.oracle("ascend_ops_core::mask_vocab_range", "a dictionary of the rows held, by hand")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "ranges", [(0, 5, 0, 20, 20), (5, 9, 3, 20, 24), (18, 18, 4, 22, 24), (0, 20, 0, 20, 26)]
)
def test_equals_a_dictionary(ranges: tuple[int, ...], dtype: torch.dtype) -> None:
    org_start, org_end, padding, added_start, added_end = ranges
    held = {one: one - org_start for one in range(org_start, org_end)}
    behind = org_end - org_start + padding
    held |= {one: behind + one - added_start for one in range(added_start, added_end)}
    ids = list(range(-1, 28))
    rows, missing = mask_vocab_range(torch.tensor(ids, dtype=dtype), *ranges)
    wanted_rows, wanted_missing = brute_force(ids, held)
    assert rows.dtype == dtype
    assert rows.tolist() == wanted_rows
    assert missing.tolist() == wanted_missing


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_together_hold_every_id_once(ranks: int) -> None:
    # 101 ids padded to 105, so the vocabulary is not divisible by the ranks.
    share = -(-101 // ranks)
    ids = torch.arange(101).view(1, 101)
    table, total = torch.randn(101, 4), torch.zeros(1, 101, 4)
    for rank in range(ranks):
        start, end = min(rank * share, 101), min((rank + 1) * share, 101)
        own = torch.full((share, 4), float("nan"))
        own[: end - start] = table[start:end]
        rows, missing = mask_vocab_range(ids, start, end, share - (end - start), 101, 101)
        total += own[rows].masked_fill(missing.unsqueeze(-1), 0)
    assert torch.equal(total[0], table)


def test_no_ids() -> None:
    rows, missing = mask_vocab_range(torch.empty(0, 3, dtype=torch.int64), 0, 4, 0, 4, 4)
    assert rows.shape == missing.shape == (0, 3)


@pytest.mark.parametrize(
    ("ids", "ranges", "limit"),
    [
        (torch.zeros(1), (0, 1, 0, 1, 1), "int32, int64"),
        (torch.zeros(1, dtype=torch.int64), (2, 1, 0, 5, 5), "ends where it starts"),
        (torch.zeros(1, dtype=torch.int64), (0, 1, -1, 5, 5), "padding"),
        (torch.zeros(1, dtype=torch.int64), (0, 6, 0, 5, 7), "an id has one row"),
    ],
    ids=["dtype", "order", "padding", "overlap"],
)
def test_refusals(ids: torch.Tensor, ranges: tuple[int, ...], limit: str) -> None:
    with pytest.raises(InvalidInputError, match=limit):
        mask_vocab_range(ids, *ranges)


def test_limits_of_the_kernel() -> None:
    supports = npu.supports_mask_vocab_range_triton
    ids = torch.zeros(3, dtype=torch.int64)
    assert supports(facts_of("A2"), ids, 0, 4, 0, 4, 4)
    assert "int32" in supports(facts_of("A2"), ids, 0, 2**31, 0, 2**31, 2**31).reason
    assert "int16" in supports(facts_of("A2"), ids.short(), 0, 4, 0, 4, 4).reason
