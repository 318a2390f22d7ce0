"""The latent cache in the table of caches, and its two parts in memory."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.caches import CacheRole, latent_blocks, latent_views, mla_caches
from ascend_ops_core.errors import InvalidInputError


def test_a_row_is_a_latent_and_a_key() -> None:
    kind = mla_caches(kv_lora_rank=512, rotary_dim=64, dtype=torch.bfloat16, device="A3")[
        CacheRole.LATENT
    ]
    assert (kind.rows_per_block, kind.row_bytes, kind.window) == (128, 1152, None)
    assert kind.block_bytes == 128 * 1152


@pytest.mark.parametrize("device", ["cpu", "A2", "A3", "A5"])
def test_only_blocks_of_the_table_are_taken(device: str) -> None:
    sizes = {"kv_lora_rank": 32, "rotary_dim": 8, "dtype": torch.float32, "device": device}
    for size in latent_blocks(device):
        assert mla_caches(**sizes, block_tokens=size)[CacheRole.LATENT].block_tokens == size
    with pytest.raises(InvalidInputError, match="block_size=48"):
        mla_caches(**sizes, block_tokens=48)


def test_parts_lie_apart_in_memory_of_their_own() -> None:
    page = torch.arange(2 * 3 * 5.0).view(2, 3, 5)
    latents, ropes = latent_views(page, 3)
    assert latents.is_contiguous()
    assert ropes.is_contiguous()
    assert latents.flatten().tolist() == list(range(18))
    assert ropes.flatten().tolist() == list(range(18, 30))


def test_parts_lie_side_by_side_in_a_slab() -> None:
    page = torch.arange(2 * 20.0).view(2, 20)[:, 2:17].unflatten(1, (3, 5))
    latents, ropes = latent_views(page, 3)
    assert torch.equal(torch.cat([latents, ropes], dim=-1), page)
