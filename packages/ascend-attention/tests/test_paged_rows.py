"""Rows of paged caches, on strided views of a slab that several caches share."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.ops.paged_rows import (
    RowIndex,
    gather_rows,
    locate_rows,
    reference,
    write_rows,
)
from ascend_ops_core.errors import InvalidInputError
from hypothesis import given
from hypothesis import strategies as st


def slab(blocks: int = 6, rows: int = 4, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache inside a larger allocation, and the whole allocation."""
    whole = torch.arange(blocks * 40.0).view(blocks, 40)
    cache = whole[:, 7 : 7 + rows * width].unflatten(1, (rows, width))
    assert not cache.is_contiguous()
    return cache, whole


@pytest.mark.oracle("ascend_attention::locate_rows", "Python's division, row by row")
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


@pytest.mark.oracle("ascend_attention::gather_rows", "what was written, row by row")
@pytest.mark.oracle("ascend_attention::write_rows", "the places that changed in the slab")
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


@pytest.mark.parametrize(("block", "offset"), [(6, 0), (9, 1), (2, 4)])
def test_a_write_outside_the_cache_writes_nothing(block: int, offset: int) -> None:
    pytest.importorskip("numba")
    cache, whole = slab()
    before = whole.clone()
    index = RowIndex(torch.tensor([1, block]), torch.tensor([0, offset]))
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


PADDED = RowIndex(torch.tensor([2, -1, 3, 1, -4]), torch.tensor([1, 0, -1, 3, -1]))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("defined", [False, True], ids=["kernel", "definition"])
def test_padding_is_not_written(defined: bool, index_dtype: torch.dtype) -> None:
    cache, whole = slab()
    before = whole.clone()
    rows = -torch.arange(1.0, 16).view(5, 3)
    index = RowIndex(*(part.to(index_dtype) for part in PADDED))
    if defined:
        reference.write_rows(cache, rows, *index)
    else:
        write_rows(cache, rows, index)
    assert torch.equal(cache[2, 1], rows[0])
    assert torch.equal(cache[1, 3], rows[3])
    assert int((whole != before).sum()) == 6


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float64],
    ids=str,
)
@pytest.mark.parametrize("defined", [False, True], ids=["kernel", "definition"])
def test_padding_gives_zeros_and_reads_nothing(defined: bool, dtype: torch.dtype) -> None:
    cache, _ = slab()
    if dtype.is_floating_point:
        cache[0], cache[5], cache[3, 3] = float("nan"), float("nan"), float("nan")
    cache = cache.to(dtype)
    got = reference.gather_rows(cache, *PADDED) if defined else gather_rows(cache, PADDED)
    assert got.dtype == dtype
    assert torch.equal(got[[0, 3]].float(), torch.stack((cache[2, 1], cache[1, 3])).float())
    assert torch.equal(got[[1, 2, 4]].float(), torch.zeros(3, 3))


def test_a_read_outside_the_cache_is_an_error() -> None:
    cache, _ = slab()
    with pytest.raises(IndexError):
        gather_rows(cache, RowIndex(torch.tensor([6]), torch.tensor([0])))
    with pytest.raises(IndexError):
        gather_rows(cache, RowIndex(torch.tensor([0]), torch.tensor([4])))


def test_shapes_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    cache, whole = slab()
    before = whole.clone()
    one, two = torch.tensor([0]), torch.tensor([0, 1])
    for rows, index in (
        (torch.zeros(2, 3), RowIndex(one, one)),
        (torch.zeros(2, 4), RowIndex(two, two)),
        (torch.zeros(2, 3), RowIndex(two, one)),
        (torch.zeros(2, 3), RowIndex(two.float(), two)),
    ):
        with pytest.raises(InvalidInputError):
            write_rows(cache, rows, index)
    with pytest.raises(InvalidInputError):
        gather_rows(whole, RowIndex(two, two))
    with pytest.raises(InvalidInputError):
        locate_rows(torch.zeros(2, 3), two, two, 2)
    with pytest.raises(InvalidInputError):
        locate_rows(torch.zeros(2, 3, dtype=torch.int32), two, two, 0)
    assert torch.equal(whole, before)
