"""The flat arrays of a step, against loops over its requests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ascend_attention.step import BlockLayout, ClosedEntries, StepLayout, UniformLayout
from ascend_ops_core import InvalidInputError
from hypothesis import given
from hypothesis import strategies as st

# (tokens computed before, tokens of this step); zero-length queries included.
BATCHES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 150)), max_size=4)


def layout_of(batch: list[tuple[int, int]]) -> StepLayout:
    lengths = [new for _, new in batch]
    return StepLayout.build(np.cumsum([0, *lengths]), [before + new for before, new in batch])


@given(BATCHES)
def test_layout_equals_loops(batch: list[tuple[int, int]]) -> None:
    layout = layout_of(batch)
    flat = [(r, p) for r, (start, new) in enumerate(batch) for p in range(start, start + new)]
    assert layout.num_tokens == len(flat)
    assert layout.request.tolist() == [r for r, _ in flat]
    assert layout.position.tolist() == [p for _, p in flat]
    assert layout.query_lens.tolist() == [new for _, new in batch]
    assert layout.starts.tolist() == [start for start, _ in batch]
    assert layout.request.dtype == layout.position.dtype == torch.int64


@given(BATCHES)
def test_what_the_host_knows_of_all_tokens(batch: list[tuple[int, int]]) -> None:
    layout = layout_of(batch)
    positions = [p for start, new in batch for p in range(start, start + new)]
    assert layout.least_position == min(positions, default=0)
    assert layout.longest_context == max((p + 1 for p in positions), default=0)


# Context lengths after a step of the same number of tokens of each request; 0 is padding.
UNIFORM = st.tuples(st.integers(1, 5), st.lists(st.integers(0, 300), min_size=1, max_size=5))


@given(UNIFORM, st.sampled_from([4, 128, 3]))
def test_a_uniform_step_of_lengths_that_only_the_device_knows(
    batch: tuple[int, list[int]], ratio: int
) -> None:
    width, before = batch
    lens = [start + width for start in before]
    known = layout_of([(start, width) for start in before])
    layout = UniformLayout(torch.tensor(lens, dtype=torch.int32), width, max_context=1000)
    assert layout.num_tokens == known.num_tokens
    assert torch.equal(layout.request, known.request)
    assert torch.equal(layout.position, known.position)
    assert torch.equal(layout.visible_entries(ratio), known.visible_entries(ratio))
    assert (layout.least_position, layout.longest_context) == (0, 1000)
    places, closed = ClosedEntries.of(layout, ratio), ClosedEntries.of(known, ratio)
    assert places.real is not None
    assert len(places) == layout.num_tokens
    assert places.request[places.real].tolist() == closed.request.tolist()
    assert places.entry[places.real].tolist() == closed.entry.tolist()
    with pytest.raises(InvalidInputError, match="on the device"):
        _ = layout.starts


def test_padding_of_a_uniform_step_sees_and_completes_nothing() -> None:
    layout = UniformLayout(torch.tensor([8, 0]), 4, max_context=1000)
    assert layout.position.tolist() == [4, 5, 6, 7, -4, -3, -2, -1]
    assert layout.visible_entries(4)[4:].max() <= 0
    closed = ClosedEntries.of(layout, 4)
    assert closed.real is not None
    assert closed.real.tolist() == [False, False, False, True, False, False, False, False]
    assert closed.entry.min() >= 0


@given(BATCHES, st.sampled_from([4, 128, 3]))
def test_visible_entries_are_those_whose_last_token_is_not_ahead(
    batch: list[tuple[int, int]], ratio: int
) -> None:
    layout = layout_of(batch)
    expected = [
        sum((entry + 1) * ratio - 1 <= p for entry in range(p // ratio + 2))
        for p in layout.position.tolist()
    ]
    assert layout.visible_entries(ratio).tolist() == expected


@given(BATCHES, st.sampled_from([4, 128, 3]))
def test_closed_entries_are_those_whose_last_token_is_in_the_step(
    batch: list[tuple[int, int]], ratio: int
) -> None:
    closed = ClosedEntries.of(layout_of(batch), ratio)
    expected = [
        (r, p // ratio)
        for r, (start, new) in enumerate(batch)
        for p in range(start, start + new)
        if (p + 1) % ratio == 0
    ]
    assert list(zip(closed.request.tolist(), closed.entry.tolist(), strict=True)) == expected
    assert len(closed) == len(expected)
    assert closed.request.dtype == closed.entry.dtype == torch.int64


@given(st.integers(0, 300), st.sampled_from([4, 128]), st.data())
def test_every_split_closes_every_entry_once(length: int, ratio: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, length)))) if length else []
    seen: list[int] = []
    for start, stop in zip([0, *cuts], [*cuts, length], strict=True):
        seen += ClosedEntries.of(StepLayout.build([0, stop - start], [stop]), ratio).entry.tolist()
    assert seen == list(range(length // ratio))


@pytest.mark.parametrize("kind", [list, np.int32, np.int64, torch.int32, torch.int64], ids=str)
def test_lists_arrays_and_tensors(kind: object) -> None:
    start, lens = [0, 2, 2, 5], [2, 9, 4]
    if isinstance(kind, torch.dtype):
        start, lens = torch.tensor(start, dtype=kind), torch.tensor(lens, dtype=kind)
    elif kind is not list:
        start, lens = np.array(start, dtype=kind), np.array(lens, dtype=kind)
    layout = StepLayout.build(start, lens)
    assert layout.position.tolist() == [0, 1, 1, 2, 3]
    assert layout.request.tolist() == [0, 0, 2, 2, 2]
    assert layout.host_lengths == ((2, 2, 5), (2, 9, 4))
    assert UniformLayout(torch.tensor([2, 9]), 1, 16).host_lengths == ((), ())


def test_a_step_without_requests() -> None:
    layout = StepLayout.build([0], [])
    assert layout.num_tokens == 0
    assert layout.position.shape == layout.visible_entries(4).shape == (0,)
    assert len(ClosedEntries.of(layout, 4)) == 0


# Context in front of every block, and how many of its tokens are cached.
BLOCKS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=4)


@given(BLOCKS, st.sampled_from([1, 6, 16]))
def test_tokens_of_a_block_see_each_other_and_one_window(
    batch: list[tuple[int, int]], window: int
) -> None:
    width = 4
    lens = torch.tensor([start + cached for start, cached in batch], dtype=torch.int32)
    slots = [7 if i < cached else -1 for _, cached in batch for i in range(width)]
    layout = BlockLayout(lens, width, 100, torch.tensor([*slots, 7], dtype=torch.int64))
    assert layout.num_tokens == width * len(batch)
    seen = layout.window_positions(window)
    assert seen.shape == (layout.num_tokens, window + width)
    assert layout.least_position < window - 1, "or nobody would look which places are empty"
    for row, found in enumerate(seen.tolist()):
        start, cached = batch[row // width]
        expected = list(range(max(start - window, 0), start + cached))
        assert [place for place in found if place >= 0] == expected
