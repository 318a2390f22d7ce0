"""The compressor's operators: windows in pages against loops, what they ask of host and caller."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.layers.compressor import Compressor
from ascend_attention.ops.compressor import (
    compress_paged_windows,
    compress_windows,
    project_states,
)
from ascend_attention.ops.compressor.cases import CASES
from ascend_attention.ops.paged_rows import RowIndex, gather_rows
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Inputs
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close


def paged_windows_by_loops(
    cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    first: torch.Tensor,
    overlap: int,
) -> torch.Tensor:
    rows, width = block.shape[1], cache.shape[2] // (2 * overlap)
    out = torch.zeros(len(block), width, dtype=torch.float64)
    for n in range(len(block)):
        for d in range(width):
            kv, gate = [], []
            for i in range(rows):
                previous = overlap == 2 and i < rows // 2
                if (previous and first[n]) or block[n, i] < 0:
                    continue
                channel = d if overlap == 1 or previous else width + d
                row = cache[block[n, i], offset[n, i]].double()
                kv.append(row[channel])
                gate.append(row[overlap * width + channel])
            if kv:
                out[n, d] = (torch.stack(gate).softmax(0) * torch.stack(kv)).sum()
    return out


@pytest.mark.oracle(
    "ascend_attention::compress_paged_windows", "loops over entries, channels and rows in float64"
)
@pytest.mark.parametrize(("ratio", "overlap"), [(4, 2), (128, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("entries", [0, 1, 3])
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_paged_pooling_equals_loops(
    ratio: int, overlap: int, entries: int, index: torch.dtype
) -> None:
    torch.manual_seed(ratio)
    rows, values, per_block = overlap * ratio, 2 * overlap * 5, 7
    blocks = -(-(entries + 1) * rows // per_block)
    cache = torch.randn(blocks, per_block * values + 3)[:, 3:].unflatten(1, (per_block, values))
    place = torch.randperm(blocks * per_block)[: entries * rows].view(entries, rows).to(index)
    block, offset = place // per_block, place % per_block
    first = torch.arange(entries) == 0
    if overlap == 2 and entries:
        cache[block[0, :ratio].long(), offset[0, :ratio].long()] = float("nan")
    # One row that does not exist, and behind the entries one of padding.
    block[1:, ratio - 1] = -1
    block = torch.cat((block, torch.full((1, rows), -1, dtype=index)))
    offset = torch.cat((offset, torch.full((1, rows), 99, dtype=index)))
    first = torch.cat((first, torch.tensor([False])))
    got = compress_paged_windows(cache, block, offset, first, overlap)
    assert_close(got, paged_windows_by_loops(cache, block, offset, first, overlap), scale=3)
    assert got[-1].tolist() == [0.0] * 5


@pytest.mark.parametrize(("block", "offset"), [(2, 0), (0, 7), (0, -1)])
def test_a_row_outside_the_cache_is_refused_on_a_cpu(block: int, offset: int) -> None:
    places = torch.zeros(2, 3, dtype=torch.int64)
    blocks, offsets = places.clone(), places.clone()
    blocks[1, 2], offsets[1, 2] = block, offset
    with pytest.raises(IndexError, match="outside a cache of 2 blocks of 7 rows"):
        compress_paged_windows(
            torch.zeros(2, 7, 10), blocks, offsets, torch.zeros(2, dtype=torch.bool), 1
        )


@pytest.mark.parametrize("ratio", [4, 128])
def test_entries_from_pages_are_entries_from_gathered_rows(ratio: int) -> None:
    torch.manual_seed(ratio)
    rotary = ComplexExpRotaryEmbedding(8, 10000.0, 512)
    layer = Compressor(20, 16, ratio, 1e-6, rotary, torch.float32)
    layer.norm.data.normal_()
    rows, per_block = layer.overlap * ratio, 8
    cache = torch.randn(40, per_block, 2 * layer.overlap * 16)
    block = torch.randint(0, 40, (4, rows))
    index = RowIndex(block, torch.randint(0, per_block, (4, rows)))
    entry = torch.tensor([0, 1, 3, 2])
    got = layer.finish_paged(cache, index, entry, torch.float32)
    expected = layer.finish(gather_rows(cache, index), entry, torch.float32)
    # Gathered rows are pooled by the definition, pages on a CPU by a kernel.
    assert_close(got, expected)
    gone = RowIndex(torch.full((2, rows), -1), torch.zeros(2, rows, dtype=torch.int64))
    padding = layer.finish_paged(cache, gone, torch.tensor([0, 1]), torch.bfloat16)
    assert torch.equal(padding, torch.zeros(2, 16, dtype=torch.bfloat16))


def test_definitions_ask_the_host_for_nothing() -> None:
    """On the meta device there is no value to ask for, and a tensor left on the CPU is an error."""
    for name, cases in CASES.items():
        operator = find(f"ascend_attention::{name}")
        for case in cases:
            if not case.large:
                arguments = case.make(Inputs("meta"))
                got, fake = operator.reference(*arguments), operator.fake(*arguments)
                assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


def test_windows_that_do_not_fit_are_refused() -> None:
    first = torch.zeros(2, dtype=torch.bool)
    cache, block = torch.zeros(3, 4, 8), torch.zeros(2, 6, dtype=torch.int64)
    with pytest.raises(InvalidInputError, match="overlap=3"):
        compress_windows(torch.zeros(2, 6, 8), first, 3)
    with pytest.raises(InvalidInputError, match="windows of 5 rows"):
        compress_windows(torch.zeros(2, 5, 8), first, 2)
    with pytest.raises(InvalidInputError, match="with 6 values"):
        compress_windows(torch.zeros(2, 6, 6), first, 2)
    with pytest.raises(InvalidInputError, match="windows of 0 rows"):
        compress_windows(torch.zeros(2, 0, 8), first, 1)
    with pytest.raises(InvalidInputError, match=r"state_rows of torch\.bfloat16"):
        compress_windows(torch.zeros(2, 6, 8, dtype=torch.bfloat16), first, 2)
    with pytest.raises(InvalidInputError, match="first_entry of shape"):
        compress_paged_windows(cache, block, block, first[:1], 2)
    with pytest.raises(InvalidInputError, match=r"offset of torch\.int32"):
        compress_paged_windows(cache, block, block.int(), first, 2)
    with pytest.raises(InvalidInputError, match=r"position of torch\.float32"):
        project_states(torch.zeros(1, 3), torch.zeros(8, 3), torch.zeros(4, 4), torch.zeros(1))
    with pytest.raises(InvalidInputError, match="wkv_wgate of shape"):
        project_states(torch.zeros(1, 3), torch.zeros(7, 3), torch.zeros(4, 4), block[0, :1])
