"""Rows of drafted blocks against a loop over requests in Python."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.ops.block_inputs import expand_blocks

UNWRITTEN = -77
MASK = 900


def table_of(requests: int, entries: int) -> torch.Tensor:
    torch.manual_seed(requests)
    return torch.randperm(requests * entries).int().view(requests, entries)


@pytest.mark.oracle("ascend_specdec::expand_blocks", "a loop over requests in Python")
@pytest.mark.parametrize("queries", [1, 2, 7])
@pytest.mark.parametrize("rejecting", [True, False], ids=["rejected", "all stand"])
@pytest.mark.parametrize(
    "requests",
    [
        [(1, 1, 0)],
        [(3, 3, 0), (1, 12, 0), (8, 15, 7), (0, 9, 0), (4, 17, 4)],
        # The context is full inside the block, at its start, and already before it.
        [(4, 17, 0), (2, 20, 0), (5, 20, 3), (6, 22, 1)],
    ],
    ids=["one", "ragged", "full"],
)
def test_rows_equal_a_loop(
    requests: list[tuple[int, int, int]], rejecting: bool, queries: int
) -> None:
    block_size, limit, padding = 4, 20, 3
    table = table_of(len(requests), 5)
    starts, tokens = [0], []
    for brought, _, _ in requests:
        starts.append(starts[-1] + brought)
    rows = len(requests) * queries
    tokens = torch.full((rows,), UNWRITTEN, dtype=torch.int32)
    positions = torch.full((rows,), UNWRITTEN)
    slots = torch.full((rows,), UNWRITTEN)
    context = torch.full((starts[-1] + padding,), UNWRITTEN)
    rejected = torch.tensor([one[2] for one in requests], dtype=torch.int32)
    expand_blocks(
        tokens,
        positions,
        slots,
        context,
        torch.arange(len(requests), dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([one[1] for one in requests], dtype=torch.int32),
        rejected if rejecting else None,
        table,
        mask_token=MASK,
        block_size=block_size,
        limit=limit,
    )

    def slot(request: int, position: int) -> int:
        if position >= limit:
            return -1
        return int(table[request, position // block_size]) * block_size + position % block_size

    expected: tuple[list[int], ...] = ([], [], [], [])
    for request, (brought, total, lost) in enumerate(requests):
        end = total - (lost if rejecting else 0)
        for position in range(total - brought, total):
            expected[3].append(slot(request, position) if position < end else -1)
        for j in range(queries):
            expected[0].append(MASK if j else request)
            expected[1].append(min(end + j, limit - 1))
            expected[2].append(slot(request, end + j))
    assert tokens.tolist() == expected[0]
    assert positions.tolist() == expected[1]
    assert slots.tolist() == expected[2]
    assert context.tolist() == expected[3] + [-1] * padding


def test_no_requests_leave_padding_alone() -> None:
    context = torch.full((3,), UNWRITTEN)
    none = torch.empty(0, dtype=torch.int32)
    start = torch.zeros(1, dtype=torch.int32)
    expand_blocks(
        none, none, none, context, none, start, none, None, table_of(1, 1),
        mask_token=MASK, block_size=4, limit=8,
    )  # fmt: skip
    assert context.tolist() == [-1] * 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": torch.zeros(5, dtype=torch.int32)}, "5 rows for 2 requests"),
        ({"tokens": torch.zeros(0, dtype=torch.int32)}, "0 rows for 2 requests"),
        ({"tokens": torch.zeros(4)}, "tokens of torch.float32"),
        ({"seq_lens": torch.zeros(3, dtype=torch.int32)}, "seq_lens of shape"),
        ({"rejected": torch.zeros(1, dtype=torch.int32)}, "rejected of shape"),
        ({"block_table": torch.zeros(1, 4, dtype=torch.int32)}, "rows of block_table=1"),
        ({"limit": 0}, "limit=0"),
        ({"block_size": 0}, "block_size=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused(change: dict, named: str) -> None:
    rows = change.get("tokens", torch.zeros(4, dtype=torch.int32)).shape[0]
    given = {
        "tokens": torch.zeros(4, dtype=torch.int32),
        "positions": torch.zeros(rows, dtype=torch.int64),
        "slots": torch.zeros(rows, dtype=torch.int64),
        "context_slots": torch.full((2,), UNWRITTEN),
        "next_tokens": torch.zeros(2, dtype=torch.int32),
        "query_start": torch.tensor([0, 1, 2], dtype=torch.int32),
        "seq_lens": torch.ones(2, dtype=torch.int32),
        "rejected": None,
        "block_table": table_of(2, 4),
        "mask_token": MASK,
        "block_size": 4,
        "limit": 16,
    } | change
    with pytest.raises(InvalidInputError, match=named):
        expand_blocks(**given)
    assert given["context_slots"].tolist() == [UNWRITTEN] * 2
