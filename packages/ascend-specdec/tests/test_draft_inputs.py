"""What a draft model is given, against loops over requests in Python."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.ops.draft_inputs import (
    next_positions,
    next_tokens_padded,
    prepare_inputs_padded,
)

I32, I64 = torch.int32, torch.int64


@pytest.mark.oracle("ascend_specdec::prepare_inputs_padded", "a loop over requests in Python")
@pytest.mark.parametrize("requests", [(), ((3, 2),), ((2, 1), (0, 1), (5, 6), (3, 0), (0, 0))])
def test_the_last_accepted_token_is_found(requests: tuple[tuple[int, int], ...]) -> None:
    """``requests`` are (drafts, valid tokens); every other one has prompt tokens in front."""
    expected, rejected, starts, ends = [], [], [0], [0]
    for i, (drafts, valid) in enumerate(requests):
        rows = drafts + 1 + 3 * (i % 2)
        starts.append(starts[-1] + rows)
        ends.append(ends[-1] + drafts)
        rejected.append(drafts + 1 - valid if drafts else 0)
        expected.append(starts[-1] - 1 - rejected[-1])
    out = torch.full((2, len(requests)), -7, dtype=I32)
    prepare_inputs_padded(
        out[0],
        out[1],
        torch.tensor(ends[1:], dtype=I32),
        torch.tensor([valid for _, valid in requests], dtype=I32),
        torch.tensor(starts, dtype=I32),
    )
    assert out.tolist() == [expected, rejected]


@pytest.mark.oracle("ascend_specdec::next_tokens_padded", "a loop over requests in Python")
def test_the_last_sampled_token_goes_on() -> None:
    torch.manual_seed(0)
    for requests, width in ((0, 2), (1, 1), (40, 5)):
        sampled = torch.randint(-1, 9, (requests, width))
        discarded = torch.rand(requests) < 0.3
        backup = torch.randint(50, 60, (requests,), dtype=I32)
        out = torch.full((2, requests), -7, dtype=I32)
        next_tokens_padded(out[0], out[1], sampled, discarded, backup, 7)
        for r in range(requests):
            kept = [] if discarded[r] else [t for t in sampled[r].tolist() if 0 <= t < 7]
            assert out[1, r] == len(kept)
            assert out[0, r] == (kept[-1] if kept else backup[r])


@pytest.mark.oracle("ascend_specdec::next_positions", "a loop over requests in Python")
@pytest.mark.parametrize("block_size", [1, 12, 16])
def test_positions_move_on_until_the_context_is_full(block_size: int) -> None:
    limit, requests, padding = 48, 7, 3
    positions = torch.tensor([0, 11, 15, 30, 45, 46, 47])
    table = torch.randperm(requests * -(-limit // block_size)).int().view(requests, -1)
    seq_lens = (positions + 1).int()
    out, slots = torch.full((requests,), -7), torch.full((requests + padding,), -7)
    next_positions(out, slots, seq_lens, positions, table, block_size, limit)
    for r, position in enumerate(positions.tolist()):
        after = position + 1
        if after >= limit:
            assert (out[r], seq_lens[r], slots[r]) == (0, 1, -1)
            continue
        slot = int(table[r, after // block_size]) * block_size + after % block_size
        assert (out[r], seq_lens[r], slots[r]) == (after, after + 1, slot)
    assert slots[requests:].tolist() == [-1] * padding


def test_positions_may_be_moved_in_place() -> None:
    positions, slots = torch.tensor([4, 9]), torch.zeros(2, dtype=I64)
    table = torch.tensor([[3, 1], [2, 0]], dtype=I32)
    lens = torch.tensor([5, 10], dtype=I32)
    next_positions(positions, slots, lens, positions, table, 8, 16)
    assert positions.tolist() == [5, 10]
    assert slots.tolist() == [29, 2]


def test_what_does_not_belong_together_is_refused() -> None:
    one, two = torch.zeros(1, dtype=I32), torch.zeros(2, dtype=I32)
    with pytest.raises(InvalidInputError, match="query_start_loc"):
        prepare_inputs_padded(one, one, one, one, one)
    with pytest.raises(InvalidInputError, match="200 columns"):
        next_tokens_padded(one, one, torch.zeros(1, 200, dtype=I32), one.bool(), one, 9)
    with pytest.raises(InvalidInputError, match="block_table"):
        next_positions(two, two, two, two, torch.zeros(1, 3, dtype=I32), 4, 12)
