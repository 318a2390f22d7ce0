"""States that move between blocks, against loops over requests and layers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_vllm_plugin.compat.state_copies import (
    StateCopies,
    collect_copies,
    make_copies,
    use_state_copies,
)
from vllm.model_executor.layers.mamba.mamba_utils import (
    get_conv_copy_spec,
    get_temporal_copy_spec,
)
from vllm.v1.worker import mamba_utils

FUNCTIONS = (get_conv_copy_spec, get_temporal_copy_spec)
BLOCK, DRAFTS, REQUESTS, COLUMNS = 8, 3, 5, 9
NAMES = {1: ["a", "b"], 2: ["c"]}
Layers = dict[str, tuple[torch.Tensor, torch.Tensor]]


def layers() -> Layers:
    """Two states of three layers, with gaps between slots as in a page."""
    slots = 1 + REQUESTS * COLUMNS
    made = {}
    for name in "abc":
        page = torch.randn(slots, 6 * 4 + 12 + 5)
        conv = page[:, :24].view(slots, 6, 4)
        made[name] = (conv, page[:, 24:36].view(slots, 2, 3, 2))
    return made


def clone(given: Layers) -> Layers:
    return {name: (conv.clone(), state.clone()) for name, (conv, state) in given.items()}


def tables() -> list[torch.Tensor]:
    """Block tables of both groups, which share no block within a group."""
    return [(torch.randperm(REQUESTS * COLUMNS) + 1).view(REQUESTS, COLUMNS).int() for _ in NAMES]


def config() -> Any:
    groups = [SimpleNamespace(layer_names=NAMES.get(i, [])) for i in range(3)]
    return SimpleNamespace(kv_cache_groups=groups)


def moved(
    given: Layers, group: int, table: torch.Tensor, row: int, source: int, to: int, shift: int
) -> None:
    """What vLLM's kernel does for one request, in the layers of one group."""
    if source == to and shift == 0:
        return
    for name in NAMES[group]:
        conv, state = given[name]
        rows = conv[table[row, source], shift:].clone()
        conv[table[row, to], : len(rows)] = rows
        state[table[row, to]] = state[table[row, source + shift]].clone()


def assert_same(found: Layers, expected: Layers) -> None:
    for name, states in expected.items():
        for one, other in zip(found[name], states, strict=True):
            assert torch.equal(one, other), name


def context(given: Layers, blocks: list[torch.Tensor]) -> StateCopies:
    made = StateCopies.__new__(StateCopies)
    made.is_initialized = False
    made.mamba_group_ids = list(NAMES)
    made.block_size = BLOCK
    made.num_accepted_tokens_out = torch.zeros(REQUESTS, dtype=torch.int32)
    forward = {name: SimpleNamespace(kv_cache=states) for name, states in given.items()}
    # vLLM gives the rows of the first step's requests.
    made.initialize_from_forward_context(config(), forward, FUNCTIONS, [t[:2] for t in blocks])
    return made


def numbers(values: list[int]) -> torch.Tensor:
    return torch.tensor([*values, 99], dtype=torch.int32)


@pytest.mark.parametrize("seed", range(6))
def test_states_at_the_end_of_a_block_are_kept(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    given, blocks = layers(), tables()
    expected, made = clone(given), context(given, blocks)
    accepted, columns, scheduled, computed, drafted, out = [], [], [], [], [], []
    for row in range(REQUESTS):
        drafts = draw.randint(0, DRAFTS)
        before = draw.randint(1, 2 * BLOCK)
        kept = draw.randint(1, 1 + drafts)
        column = (before + 1 + drafts + BLOCK - 1) // BLOCK - 1
        accepted.append(kept)
        columns.append(column)
        scheduled.append(1 + drafts)
        computed.append(before)
        drafted.append(drafts)
        sure, now = before + 1, before + kept
        end = now // BLOCK * BLOCK
        out.append(kept)
        if end >= sure:
            to = end // BLOCK - 1
            for group, table in zip(NAMES, blocks, strict=True):
                moved(expected, group, table, row, column, to, end - sure)
            if to == column:
                out[-1] = 1
    made.run_fused_postprocess(
        REQUESTS, *map(numbers, (accepted, columns, scheduled, computed, drafted))
    )
    assert_same(given, expected)
    assert made.num_accepted_tokens_out.tolist() == out


def test_states_move_on_to_the_next_block() -> None:
    torch.manual_seed(0)
    given, blocks = layers(), tables()
    expected, made = clone(given), context(given, blocks)
    source, to, shift = [0, -1, 2, 1, -1], [1, 3, 3, 4, 0], [0, 0, 2, 3, 0]
    for row in range(REQUESTS):
        for group, table in zip(NAMES, blocks, strict=True):
            if source[row] >= 0:
                moved(expected, group, table, row, source[row], to[row], shift[row])
    made.run_fused_precopy(REQUESTS, numbers(to), numbers(source), numbers(shift), None)
    assert_same(given, expected)
    made.run_fused_precopy(0, numbers(to), numbers(source), numbers(shift), None)
    assert_same(given, expected)


def test_collected_copies() -> None:
    torch.manual_seed(1)
    given, blocks = layers(), tables()
    expected = clone(given)
    forward = {name: SimpleNamespace(kv_cache=states) for name, states in given.items()}
    bufs = SimpleNamespace(offset=0)
    for row, (source, to, shift) in enumerate([(0, 1, 0), (2, 2, 0), (3, 4, 1)]):
        own = dict(zip(NAMES, (table[row].tolist() for table in blocks), strict=True))
        request = SimpleNamespace(block_ids=own)
        groups = list(NAMES)
        collect_copies(bufs, config(), FUNCTIONS, groups, source, to, shift, request, forward)
        for group, table in zip(NAMES, blocks, strict=True):
            moved(expected, group, table, row, source, to, shift)
    assert bufs.offset == 2
    make_copies(bufs)
    assert_same(given, expected)
    bufs.offset = 0
    make_copies(bufs)
    assert_same(given, expected)


def test_vllm_s_runner_finds_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("collect_mamba_copy_meta", "do_mamba_copy_block", "MambaSpecDecodeGPUContext"):
        monkeypatch.setattr(mamba_utils, name, getattr(mamba_utils, name))
    use_state_copies()
    use_state_copies()
    assert mamba_utils.MambaSpecDecodeGPUContext is StateCopies
    assert mamba_utils.do_mamba_copy_block is make_copies
    monkeypatch.delattr(mamba_utils, "do_mamba_copy_block")
    with pytest.raises(AttributeError):
        use_state_copies()
