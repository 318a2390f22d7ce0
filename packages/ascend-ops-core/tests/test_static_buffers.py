"""Buffers that graphs read: nothing moves, overflows or is left from an earlier step unnoticed."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.static_buffers import StaticBufferError, StaticBuffers


@pytest.fixture
def buffers() -> StaticBuffers:
    made = StaticBuffers()
    made.add("slots", (8,), torch.int64, "cpu", padding=-1)
    made.add("hidden", (8, 3), torch.float32, "cpu")
    made.add("weights", (2, 2), torch.float32, "cpu", every_step=False, per_token=False)
    return made


def fill(buffers: StaticBuffers) -> None:
    buffers.fill("slots", torch.arange(3), padded_rows=4)
    buffers.fill("hidden", torch.ones(3, 3))


def test_rows_beyond_the_values_are_padding(buffers: StaticBuffers) -> None:
    buffers.fill("slots", torch.arange(8))
    rows = buffers.fill("slots", torch.tensor([5, 6]), padded_rows=4)
    assert rows.tolist() == [5, 6, -1, -1]
    assert buffers["slots"].tolist() == [5, 6, -1, -1, 4, 5, 6, 7]
    assert rows.data_ptr() == buffers["slots"].data_ptr()


@pytest.mark.parametrize("rows", [0, 1, 8])
def test_any_number_of_rows_up_to_the_capacity(buffers: StaticBuffers, rows: int) -> None:
    values = torch.randn(rows, 3)
    assert torch.equal(buffers.fill("hidden", values), values)


def test_too_many_rows_are_refused_before_anything_is_written(buffers: StaticBuffers) -> None:
    before = buffers["slots"].clone()
    with pytest.raises(InvalidInputError, match=r"9 rows.*'slots'.*with 8"):
        buffers.fill("slots", torch.arange(9))
    with pytest.raises(InvalidInputError, match=r"12 rows"):
        buffers.fill("slots", torch.arange(2), padded_rows=12)
    assert torch.equal(buffers["slots"], before)


def test_a_replay_needs_every_buffer_filled_since_the_last(buffers: StaticBuffers) -> None:
    captured = buffers.snapshot(4)
    fill(buffers)
    buffers.check_replay(captured, 3)
    buffers.fill("slots", torch.arange(2))
    with pytest.raises(StaticBufferError, match="hidden") as caught:
        buffers.check_replay(captured, 2)
    assert "slots" not in str(caught.value)
    buffers.fill("hidden", torch.zeros(2, 3))
    buffers.check_replay(captured, 2)


def test_a_rank_s_own_rows_are_not_the_step_s(buffers: StaticBuffers) -> None:
    """Where ranks share the rows of a step, a skipped all-gather fills the first of them alone."""
    parts = r"of 4 tokens fills 2 rows of static buffer 'hidden'.*all-gather them"
    captured = buffers.snapshot(4)
    buffers.fill("slots", torch.arange(4))
    buffers.fill("hidden", torch.ones(2, 3))
    with pytest.raises(StaticBufferError, match=f"the step {parts}"):
        buffers.check_replay(captured, 4)
    buffers.fill("hidden", torch.ones(2, 3), padded_rows=4)
    buffers.check_replay(captured, 4)

    own = StaticBuffers()
    own.add("hidden", (8, 3), torch.float32, "cpu", every_step=False)
    own.fill("hidden", torch.ones(8, 3))
    own.expect_fills()
    own.fill("hidden", torch.ones(2, 3))
    with pytest.raises(StaticBufferError, match=f"the graph {parts}"):
        own.check_fills(4)
    # What a smaller graph filled when it was captured says nothing of a replay.
    own.check_fills(2)
    own.check_replay(own.snapshot(4), 4)


def test_a_fill_that_must_hold_the_whole_step(buffers: StaticBuffers) -> None:
    before = buffers["hidden"].clone()
    with pytest.raises(StaticBufferError, match=r"2 rows .* 'hidden' in a step of 4: .*all-gather"):
        buffers.fill("hidden", torch.ones(2, 3), step_rows=4)
    assert torch.equal(buffers["hidden"], before)
    buffers.fill("hidden", torch.ones(4, 3), step_rows=4)


def test_a_graph_fills_what_a_forward_filled_before_it(buffers: StaticBuffers) -> None:
    """Buffers that something else fills, or that nothing ever filled, are not expected."""
    buffers.expect_fills()
    buffers.check_fills(4)
    fill(buffers)
    buffers.fill("weights", torch.ones(2, 2))
    buffers.expect_fills()
    with pytest.raises(StaticBufferError, match=r"graph of 4 tokens never fills .* weights:"):
        buffers.check_fills(4)
    buffers.fill("weights", torch.ones(2, 2))
    buffers.check_fills(4)
    buffers.check_replay(buffers.snapshot(2), 2)


def test_a_moved_buffer_is_named(buffers: StaticBuffers) -> None:
    captured = buffers.snapshot(4)
    fill(buffers)
    buffers["hidden"].data = torch.zeros(8, 3)
    with pytest.raises(StaticBufferError, match=r"'hidden' was at 0x"):
        buffers.check_replay(captured, 2)
    buffers.check_replay(buffers.snapshot(4), 2)


def test_a_batch_beyond_the_graph_is_refused(buffers: StaticBuffers) -> None:
    captured = buffers.snapshot(4)
    fill(buffers)
    with pytest.raises(InvalidInputError, match=r"5 rows.*captured for 4"):
        buffers.check_replay(captured, 5)


def test_a_graph_beyond_a_buffer_is_refused(buffers: StaticBuffers) -> None:
    buffers.snapshot(8)
    with pytest.raises(InvalidInputError, match=r"9 rows.*'slots'.*with 8"):
        buffers.snapshot(9)


@pytest.mark.parametrize("rows", [0, 1, 3, 4])
def test_parts_of_any_number_of_rows_lie_together(rows: int) -> None:
    buffers = StaticBuffers()
    whole = buffers.add("send", (4, 3, 2, 5), torch.float32, "cpu")
    parts = buffers.parts("send", rows)
    assert parts.shape == (3, rows, 2, 5)
    assert parts.is_contiguous()
    parts.copy_(torch.arange(parts.numel()).view_as(parts) + 1.0)
    assert whole.flatten()[: parts.numel()].tolist() == list(range(1, parts.numel() + 1))
    assert whole.count_nonzero() == parts.numel()
    with pytest.raises(InvalidInputError, match=r"5 rows.*'send'.*with 4"):
        buffers.parts("send", 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.add("slots", (1,), torch.int64, "cpu"), "one of that name"),
        (lambda b: b.add("other", (), torch.int64, "cpu"), "number of rows"),
        (lambda b: b.fill("hidden", torch.ones(2, 4)), r"its rows are \(3,\)"),
        (lambda b: b["absent"], "known are slots, hidden, weights"),
    ],
    ids=["name", "shape", "width", "unknown"],
)
def test_misuse_is_refused(buffers: StaticBuffers, call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(InvalidInputError, match=message):
        call(buffers)
