"""What stands for vLLM's Triton kernels on an NPU, against loops that follow vLLM's definition."""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch
from ascend_vllm_plugin.compat.kernels import REPLACED, Kernel, draft, slot_mapping
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def cumulative(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)


@given(positions=st.lists(st.integers(0, 31), min_size=1, max_size=5), padding=st.integers(0, 2))
def test_a_step_of_drafting(positions: list[int], padding: int) -> None:
    block, longest, requests = 4, 32, len(positions)
    table = torch.arange(requests * 8, dtype=torch.int32).view(requests, 8) + 1
    lens = torch.tensor([p + 1 for p in positions], dtype=torch.int32)
    moved = torch.full((requests,), -7)
    slots = torch.full((requests + padding,), -7)
    draft.step_slot_mapping(
        torch.tensor(positions), table, 8, lens, moved, slots, block_size=block,
        max_model_len=longest, n_blocks_per_req=8, PAD_ID=-1, batch_size=requests,
    )  # fmt: skip
    for r, position in enumerate(positions):
        full = position + 1 >= longest
        new = 0 if full else position + 1
        assert int(moved[r]) == new
        assert int(lens[r]) == (1 if full else position + 2)
        assert int(slots[r]) == (-1 if full else int(table[r, new // block]) * block + new % block)
    assert slots[requests:].tolist() == [-1] * padding


@given(counts=COUNTS, seed=st.integers(0, 99))
def test_where_the_draft_goes_on(counts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    valid = torch.tensor([int(torch.randint(1, n + 2, (1,), generator=generator)) for n in counts])
    lens = [n + 1 for n in counts]
    start = torch.tensor([0, *lens]).cumsum(0)
    indices, rejected = torch.full((2, len(counts)), -7, dtype=torch.int32)
    draft.prepare_inputs_padded(cumulative(counts), valid, start, indices, rejected, len(counts))
    for r, n in enumerate(counts):
        lost = n + 1 - int(valid[r]) if n else 0
        assert int(rejected[r]) == lost
        assert int(indices[r]) == int(start[r + 1]) - 1 - lost


def test_the_token_to_go_on_with() -> None:
    sampled = torch.tensor(
        [[5, 6, -1], [7, -1, -1], [8, 9, 3], [-1, -1, -1], [4, 99, -1]], dtype=torch.int32
    )
    discarded = torch.tensor([False, True, False, False, False])
    backup = torch.tensor([100, 101, 102, 103, 104], dtype=torch.int32)
    following, counts = torch.full((2, 5), -7, dtype=torch.int32)
    draft.prepare_next_token_padded(
        sampled, discarded, backup, following, counts, 50, 3, 5, 3, BLOCK_SIZE_TOKENS=4
    )
    assert following.tolist() == [6, 101, 3, 103, 4]
    assert counts.tolist() == [2, 0, 3, 0, 1]


def test_slots_of_a_ragged_batch_with_padding() -> None:
    slots = torch.full((8,), 7)
    start = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    positions = torch.tensor([3, 4, 0, 1, 2])
    table = torch.tensor([[5, 6], [1, 2], [8, 9]], dtype=torch.int32)
    Kernel(slot_mapping)[(4,)](
        5, 8, start, positions, table, 2, 4, slots, KV_CACHE_BLOCK_SIZE=4, BLOCKS_PER_KV_BLOCK=1,
        TOTAL_CP_WORLD_SIZE=1, TOTAL_CP_RANK=0, CP_KV_CACHE_INTERLEAVE_SIZE=1, PAD_ID=-1,
        BLOCK_SIZE=1024,
    )  # fmt: skip
    assert slots.tolist() == [23, 24, 32, 33, 34, -1, -1, -1]


@pytest.mark.engine
@pytest.mark.parametrize(("module", "name"), list(REPLACED), ids=lambda part: part.split(".")[-1])
def test_upstream_still_launches_a_kernel_of_its_own(module: str, name: str) -> None:
    """In the one file where it is looked up, and nowhere else in the V1 runner."""
    source = inspect.getsource(importlib.import_module(module))
    assert f"{name}[" in source, f"vLLM no longer launches {name} there: remove it from compat"
