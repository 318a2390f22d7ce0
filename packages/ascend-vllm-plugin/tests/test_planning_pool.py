"""Properties of the block pool; tests/engine/test_planning.py compares it with vLLM's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ascend_vllm_plugin.planning.block_pool import BlockPool, Load, caches_of, pool_of
from ascend_vllm_plugin.planning.source import read_model
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).parent / "data"
GIB = 1024**3
POOLS = {
    (name, device): pool_of(
        caches_of(
            read_model(DATA / f"deepseek_v4_{name}.json").spec,
            dtype=torch.bfloat16,
            device=device,
            draft=True,
        ),
        draft=True,
    )
    for name in ("flash", "pro")
    for device in ("cpu", "A2", "A5")
}
pools = st.sampled_from(sorted(POOLS)).map(POOLS.__getitem__)


@given(
    pool=pools,
    tokens=st.integers(1, 2**20),
    in_flight=st.integers(1, 2**15),
    concurrency=st.integers(1, 64),
)
def test_more_is_never_cheaper(
    pool: BlockPool, tokens: int, in_flight: int, concurrency: int
) -> None:
    load = Load(in_flight, 1, concurrency)
    needed = pool.blocks_of(load, tokens)
    assert pool.blocks_of(load, tokens + 1) >= needed
    assert pool.blocks_of(Load(in_flight + 1, 1, concurrency), tokens) >= needed
    assert pool.blocks_of(Load(in_flight, 1, concurrency + 1), tokens) > needed
    memory = (needed + 1) * pool.stride
    assert pool.num_blocks(memory) == needed + 1
    if pool.bytes_to_admit(tokens, in_flight) <= memory:
        assert pool.fits(memory, load, tokens)
    assert not pool.fits(memory - 1, load, tokens)


@pytest.mark.parametrize(("name", "device"), sorted(POOLS))
def test_every_cache_is_in_one_group_and_fits_into_a_block(name: str, device: str) -> None:
    pool = POOLS[name, device]
    spec = read_model(DATA / f"deepseek_v4_{name}.json").spec
    caches = caches_of(spec, dtype=torch.bfloat16, device=device, draft=True)
    placed = [cache for group in pool.groups for cache in group.caches]
    assert len(placed) == len(caches) == len(set(placed))
    assert set(placed) == set(caches)
    assert max(group.bytes_used for group in pool.groups) == pool.stride
    for group in pool.groups:
        assert len({(c.kind.block_tokens, c.kind.window) for c in group.caches}) == 1


def test_a_million_tokens_of_flash_by_hand() -> None:
    """A c4 layer keeps 262144 rows of 512 and of 128 values, the latter with a scale of two bytes,
    and a c128 layer 8192 rows of 512."""
    pool = POOLS["flash", "A2"]
    main = pool.groups[0]
    blocks = main.blocks_at_most(2**20, 1)
    assert blocks == 4096
    rows = 21 * 262144 * (512 * 2 + 128 + 2) + 20 * 8192 * 512 * 2
    assert blocks * main.bytes_used == rows


def test_a_million_tokens_of_flash_on_a5_by_hand() -> None:
    """The same rows in 640 bytes, keys with a scale of four bytes."""
    main = POOLS["flash", "A5"].groups[0]
    rows = 21 * 262144 * (640 + 128 + 4) + 20 * 8192 * 640
    assert main.blocks_at_most(2**20, 1) * main.bytes_used == rows


def test_prefixes() -> None:
    assert (POOLS["flash", "cpu"].prefix_unit, POOLS["flash", "cpu"].smallest_shared_prefix) == (
        256,
        256 + 64,
    )
    assert (POOLS["flash", "A2"].prefix_unit, POOLS["flash", "A2"].smallest_shared_prefix) == (
        256,
        256 + 64,
    )


@pytest.mark.parametrize("device", ["A2", "A5"])
@pytest.mark.parametrize("block", [128, 256, 512])
def test_groups_fill_the_blocks_of_an_npu(device: str, block: int) -> None:
    """Compressed caches, of which a long context has most, leave nothing empty."""
    spec = read_model(DATA / "deepseek_v4_flash.json").spec
    caches = caches_of(spec, dtype=torch.bfloat16, device=device, block_tokens=block, draft=True)
    pool = pool_of(caches, draft=True)
    assert pool.padding(pool.groups[0]) < 0.01
    assert pool.prefix_unit == block
