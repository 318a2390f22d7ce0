"""Rows of paged caches, on strided views of a slab that several caches share."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.ops.paged_rows import RowIndex, gather_rows, locate_rows, write_rows
from hypothesis import given
from hypothesis import strategies as st


def slab(blocks: int = 6, rows: int = 4, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache inside a larger allocation, and the whole allocation."""
    whole = torch.arange(blocks * 40.0).view(blocks, 40)
    cache = whole[:, 7 : 7 + rows * width].unflatten(1, (rows, width))
    assert not cache.is_contiguous()
    return cache, whole


@given(
    table=st.permutations(range(6)),
    rows=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 11)), max_size=8),
    per_block=st.integers(1, 4),
)
def test_locate_equals_division(
    table: list[int], rows: list[tuple[int, int]], per_block: int
) -> None:
    block_table = torch.tensor(table, dtype=torch.int32).view(2, 3)
    rows = [(r, min(row, 3 * per_block - 1)) for r, row in rows]
    index = locate_rows(
        block_table,
        torch.tensor([r for r, _ in rows], dtype=torch.int64),
        torch.tensor([row for _, row in rows], dtype=torch.int64),
        per_block,
    )
    assert index.block.tolist() == [table[3 * r + row // per_block] for r, row in rows]
    assert index.offset.tolist() == [row % per_block for _, row in rows]
    assert index.block.dtype == torch.int64


def test_locate_broadcasts_requests_over_rows() -> None:
    table = torch.tensor([[5, 0], [2, 3]])
    index = locate_rows(table, torch.tensor([[0], [1]]), torch.tensor([[0, 3], [1, 2]]), 2)
    assert index.block.tolist() == [[5, 0], [2, 3]]
    assert index.offset.tolist() == [[0, 1], [1, 0]]


def test_write_then_gather_on_a_strided_view_touches_nothing_else() -> None:
    cache, whole = slab()
    before = whole.clone()
    index = RowIndex(torch.tensor([4, 0, 4]), torch.tensor([3, 0, 1]))
    rows = -torch.arange(1.0, 10).view(3, 3)
    write_rows(cache, rows, index)
    assert torch.equal(gather_rows(cache, index), rows)
    changed = (whole != before).nonzero().tolist()
    expected = [[b, 7 + o * 3 + d] for b, o in ((4, 3), (0, 0), (4, 1)) for d in range(3)]
    assert sorted(changed) == sorted(expected)


def test_gather_is_a_copy_of_any_shape() -> None:
    cache, whole = slab()
    index = RowIndex(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0, 1], [2, 3]]))
    got = gather_rows(cache, index)
    assert got.shape == (2, 2, 3)
    assert torch.equal(got[1, 0], cache[3, 2])
    got.zero_()
    assert torch.equal(whole, slab()[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_are_rounded_to_the_dtype_of_the_cache(dtype: torch.dtype) -> None:
    cache = torch.zeros(2, 2, 4, dtype=dtype)
    rows = torch.randn(1, 4)
    write_rows(cache, rows, RowIndex(torch.tensor([1]), torch.tensor([0])))
    assert torch.equal(cache[1, 0], rows[0].to(dtype))
    assert gather_rows(cache, RowIndex(torch.tensor([1]), torch.tensor([0]))).dtype == dtype


def test_no_rows_change_no_byte() -> None:
    cache, whole = slab()
    empty = torch.zeros(0, dtype=torch.int64)
    write_rows(cache, torch.zeros(0, 3), RowIndex(empty, empty))
    assert torch.equal(whole, slab()[1])
    assert gather_rows(cache, RowIndex(empty, empty)).shape == (0, 3)


@pytest.mark.parametrize("block", [-1, 6])
def test_a_write_outside_the_cache_writes_nothing(block: int) -> None:
    pytest.importorskip("numba")
    cache, whole = slab()
    before = whole.clone()
    index = RowIndex(torch.tensor([1, block]), torch.tensor([0, 0]))
    with pytest.raises(IndexError, match="6 blocks of 4 rows"):
        write_rows(cache, torch.zeros(2, 3), index)
    assert torch.equal(whole, before)


@pytest.mark.parametrize(("request_row", "row"), [(2, 0), (-1, 0), (0, 6), (0, -1)])
def test_a_row_outside_the_block_table_is_named(request_row: int, row: int) -> None:
    pytest.importorskip("numba")
    table = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(IndexError, match=r"\(2, 3\) block table.*2 rows per block"):
        locate_rows(table, torch.tensor([request_row]), torch.tensor([row]), 2)


@pytest.mark.parametrize("rows", [0, 1, 3, 17])
def test_kernels_equal_indexing(rows: int) -> None:
    cache, _ = slab()
    index = RowIndex(torch.randperm(24)[:rows] // 4, torch.randint(0, 4, (rows,)))
    expected = cache.clone()
    values = torch.randn(rows, 3)
    for i in range(rows):
        expected[index.block[i], index.offset[i]] = values[i]
    write_rows(cache, values, index)
    assert torch.equal(cache, expected)
