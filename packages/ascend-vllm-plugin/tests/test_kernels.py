"""What stands for vLLM's Triton kernels on an NPU, against loops that follow vLLM's definition."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_vllm_plugin.compat.kernels import REPLACED, Kernel, draft, rejection, slot_mapping
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def cumulative(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)


def tokens_of(counts: list[int], values: torch.Tensor) -> list[list[Any]]:
    return [part.tolist() for part in values.split(counts)]


def verified(
    counts: list[int], accepted: list[list[bool]], written: list[list[int]], bonus: list[int]
) -> list[list[int]]:
    """One row per request: up to the first rejected draft, else all and the bonus token."""
    rows = []
    for count, good, tokens, last in zip(counts, accepted, written, bonus, strict=True):
        row = []
        for ok, token in zip(good, tokens, strict=True):
            row.append(token)
            if not ok:
                break
        else:
            row.append(last)
        assert len(row) <= count + 1
        rows.append(row + [-1] * (max(counts) + 1 - len(row)))
    return rows


@given(counts=COUNTS, seed=st.integers(0, 99), masked=st.booleans())
def test_greedy_verification(counts: list[int], seed: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    drafts = torch.randint(0, 2, (sum(counts),), generator=generator, dtype=torch.int32)
    argmax = torch.randint(0, 2, (sum(counts),), generator=generator)
    bonus = torch.arange(len(counts), dtype=torch.int32).add(50).unsqueeze(1)
    chosen = torch.rand(len(counts), generator=generator) < 0.5 if masked else None
    output = torch.full((len(counts), max(counts) + 1), -1, dtype=torch.int32)
    rejection.greedy(output, cumulative(counts), drafts, argmax, bonus, chosen, max(counts))
    expected = verified(
        counts,
        tokens_of(counts, drafts == argmax),
        tokens_of(counts, argmax),
        bonus.flatten().tolist(),
    )
    for row, (got, wanted) in enumerate(zip(output.tolist(), expected, strict=True)):
        used = chosen is None or bool(chosen[row])
        assert got == (wanted if used else [-1] * len(got))


@given(counts=COUNTS, seed=st.integers(0, 99), certain=st.booleans())
def test_random_verification(counts: list[int], seed: int, certain: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    count, vocab = sum(counts), 5
    drafts = torch.randint(-1, vocab, (count,), generator=generator, dtype=torch.int32)
    target = torch.rand(count, vocab, generator=generator)
    probs = None if certain else torch.rand(count, vocab, generator=generator).round(decimals=1)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    recovered = torch.arange(count, dtype=torch.int32) + 100
    bonus = torch.arange(len(counts), dtype=torch.int32).add(50).unsqueeze(1)
    is_greedy = torch.rand(len(counts), generator=generator) < 0.3
    output = torch.full((len(counts), max(counts) + 1), -1, dtype=torch.int32)
    rejection.random(
        output, cumulative(counts), drafts, probs, target, bonus, recovered, uniform, is_greedy,
        max(counts), vocab, None, NO_DRAFT_PROBS=certain,
    )  # fmt: skip
    good = []
    for t, token in enumerate(drafts.tolist()):
        drafted = 1.0 if probs is None else float(probs[t, token])
        good.append(
            token >= 0 and drafted > 0 and float(target[t, token]) / drafted >= float(uniform[t])
        )
    written = [d if ok else r for d, r, ok in zip(drafts.tolist(), recovered.tolist(), good)]  # noqa: B905
    expected = verified(
        counts,
        tokens_of(counts, torch.tensor(good, dtype=torch.bool)),
        tokens_of(counts, torch.tensor(written, dtype=torch.int64)),
        bonus.flatten().tolist(),
    )
    for row, (got, wanted) in enumerate(zip(output.tolist(), expected, strict=True)):
        assert got == ([-1] * len(got) if is_greedy[row] else wanted)


@given(counts=COUNTS, seed=st.integers(0, 99), certain=st.booleans())
def test_recovered_tokens(counts: list[int], seed: int, certain: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    count, vocab = sum(counts), 7
    drafts = torch.randint(0, vocab, (count,), generator=generator, dtype=torch.int32)
    target = torch.rand(count, vocab, generator=generator)
    probs = None if certain else torch.rand(count, vocab, generator=generator)
    noise = torch.rand(len(counts), vocab, generator=generator)
    output = torch.full((count,), -7, dtype=torch.int32)
    rejection.recover(
        output, cumulative(counts), drafts, probs, target, noise, vocab, 8192,
        NO_DRAFT_PROBS=certain, USE_FP64_GUMBEL=False,
    )  # fmt: skip
    request = [r for r, n in enumerate(counts) for _ in range(n)]
    for t in range(count):
        race = []
        for v in range(vocab):
            if probs is None:
                left = 0.0 if v == int(drafts[t]) else float(target[t, v])
            else:
                left = max(float(target[t, v]) - float(probs[t, v]), 0.0)
            race.append(left * float(noise[request[t], v]))
        assert race[int(output[t])] == pytest.approx(max(race))


@given(counts=COUNTS)
def test_values_are_spread_over_drafts(counts: list[int]) -> None:
    values = torch.arange(len(counts), dtype=torch.float32)
    output = torch.full((sum(counts),), -7.0)
    rejection.expand(output, values, cumulative(counts), 0, 0.5, MAX_NUM_TOKENS=128)
    assert output.tolist() == [0.5 if r == 0 else r for r, n in enumerate(counts) for _ in range(n)]


def test_synthetic_acceptance_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="synthetic"):
        rejection.greedy(*[torch.zeros(1)] * 5, None, 1, SYNTHETIC_MODE=True)


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
