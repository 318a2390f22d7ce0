"""The memory of indexer keys of sparse latent attention."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.caches import CacheRole, index_views, sparse_mla_caches


@pytest.mark.parametrize(("device", "scale"), [("A3", torch.float16), ("A5", torch.float32)])
@pytest.mark.parametrize("alone", [True, False])
def test_keys_and_scales_share_the_page_and_nothing_else(
    device: str, scale: torch.dtype, alone: bool
) -> None:
    kind = sparse_mla_caches(
        kv_lora_rank=64,
        rotary_dim=16,
        index_head_dim=32,
        dtype=torch.bfloat16,
        device=device,
        block_tokens=128,
    )[CacheRole.INDEX_KEY]
    slab = torch.zeros(3, 128, kind.row_bytes + (0 if alone else 4), dtype=torch.uint8)
    page = slab if alone else slab.flatten(1)[:, : 128 * kind.row_bytes].unflatten(1, (128, -1))
    keys, scales = index_views(page, kind)
    assert scales is not None
    assert (keys.shape, keys.dtype) == ((3, 128, 32), kind.dtype)
    assert (scales.shape, scales.dtype) == ((3, 128), scale)
    # What torch_npu needs where the memory is the cache's own.
    assert keys.is_contiguous() == scales.is_contiguous() == alone
    keys.view(torch.int8).fill_(1)
    scales.fill_(0)
    assert int(page.count_nonzero()) == keys.numel()
    scales.fill_(1.5)
    assert bool((keys.view(torch.int8) == 1).all())


def test_keys_of_the_model_s_dtype_are_the_page() -> None:
    kinds = sparse_mla_caches(
        kv_lora_rank=64, rotary_dim=16, index_head_dim=32, dtype=torch.float32
    )
    page = torch.zeros(3, 128, 32)
    assert index_views(page, kinds[CacheRole.INDEX_KEY]) == (page, None)
