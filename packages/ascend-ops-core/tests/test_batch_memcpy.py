"""Batched copies against slices of Python's bytes."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.batch_memcpy import batch_memcpy


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.oracle("ascend_ops_core::batch_memcpy", "slices of a bytearray")
def test_equals_slices() -> None:
    to = torch.randint(0, 256, (300,), dtype=torch.uint8)
    source = torch.randint(0, 256, (400,), dtype=torch.uint8)
    ranges = [(0, 390, 10), (20, 0, 65), (299, 7, 1), (90, 100, 0), (100, 100, 150)]
    expected = bytearray(to.tolist())
    for there, here, size in ranges:
        expected[there : there + size] = bytes(source.tolist())[here : here + size]
    batch_memcpy(to, source, *(numbers(*column) for column in zip(*ranges, strict=True)))
    assert bytes(to.tolist()) == bytes(expected)


def test_other_dtypes_by_their_bytes() -> None:
    states = torch.randn(4, 6)
    pool = torch.zeros(8, 6)
    row = 6 * states.element_size()
    batch_memcpy(
        pool.view(torch.uint8).flatten(),
        states.view(torch.uint8).flatten(),
        numbers(7 * row, 2 * row),
        numbers(0, 3 * row),
        numbers(row, row),
    )
    assert torch.equal(pool[7], states[0])
    assert torch.equal(pool[2], states[3])
    assert int(pool.count_nonzero()) == 12


def test_within_one_buffer() -> None:
    buffer = torch.arange(100, dtype=torch.uint8)
    batch_memcpy(buffer, buffer, numbers(50), numbers(0), numbers(10))
    assert buffer[50:60].tolist() == list(range(10))


def test_refuses_before_it_writes() -> None:
    to, one = torch.zeros(9, dtype=torch.uint8), numbers(0)
    bad = [
        ("destination of torch.int8", (to.to(torch.int8), to, one, one, one)),
        ("destination with stride 2", (to[::2], to, one, one, one)),
        ("source of shape", (to, to[None], one, one, one)),
        ("source_offsets of shape", (to, to, one, numbers(0, 0), one)),
        ("sizes of torch.int32", (to, to, one, one, one.int())),
        ("sizes of shape", (to, to, one, one, torch.tensor(3))),
    ]
    for message, arguments in bad:
        with pytest.raises(InvalidInputError, match=message):
            batch_memcpy(*arguments)
