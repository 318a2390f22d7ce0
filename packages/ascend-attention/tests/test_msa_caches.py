"""The cache table of block-sparse attention."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.caches import CacheRole
from ascend_attention.msa_caches import KeyValueKind, check_block, msa_caches
from ascend_ops_core import InvalidInputError


def test_a_layer_with_an_indexer_has_two_caches_of_equal_blocks() -> None:
    caches = msa_caches(
        num_kv_heads=4,
        head_dim=128,
        index_head_dim=128,
        dtype=torch.bfloat16,
        block_tokens=128,
        device="A3",
    )
    assert list(caches) == [CacheRole.KEY_VALUE, CacheRole.INDEX_KEY]
    both, keys = caches.values()
    assert isinstance(both, KeyValueKind)
    assert (both.num_kv_heads, both.head_dim, both.width) == (4, 128, 1024)
    # An index key takes an eighth of what keys and values of four heads take.
    assert both.block_bytes == 8 * keys.block_bytes == 128 * 2048
    assert {both.block_tokens, both.rows_per_block, keys.block_tokens} == {128}


def test_a_layer_without_one_has_no_index_keys() -> None:
    caches = msa_caches(
        num_kv_heads=1, head_dim=20, index_head_dim=None, dtype=torch.float32, block_tokens=7
    )
    assert list(caches) == [CacheRole.KEY_VALUE]


@pytest.mark.parametrize(
    ("device", "tokens", "taken"),
    [("cpu", 7, True), ("A2", 16, True), ("A3", 24, False), ("A5", 16, False), ("A5", 128, True)],
)
def test_blocks_are_of_a_size_that_kernels_take(device: str, tokens: int, taken: bool) -> None:
    if taken:
        check_block(tokens, device)
        return
    with pytest.raises(InvalidInputError, match=f"a block of {tokens} tokens"):
        check_block(tokens, device)
