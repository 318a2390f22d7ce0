"""Everything that depends on how vLLM 0.27.1 spells cache specs and attention backends.

vLLM changes most here (0.32 renames and removes several of these names), so a port touches this
module alone.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, MultipleOf
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)

from ascend_attention.caches import CacheKind, CacheRole
from ascend_attention.msa_caches import KeyValueKind

# Upstream groups caches as DeepSeek-V4 needs it when the specs carry this name.
_MODEL_VERSION = "deepseek_v4"


def cache_spec(kind: CacheKind) -> KVCacheSpec:
    """vLLM's spec of one cache; a quantised row is as many uint8 as it and its scales take."""
    if isinstance(kind, KeyValueKind):
        return FullAttentionSpec(
            block_size=kind.block_tokens,
            num_kv_heads=kind.num_kv_heads,
            head_size=kind.head_dim,
            dtype=kind.dtype,
        )
    width, dtype = kind.width, kind.dtype
    if kind.scales is not None:
        width, dtype = kind.row_bytes, torch.uint8
    used = kind.rows_per_block * kind.row_bytes
    padded = kind.block_bytes if kind.block_bytes > used else None
    if kind.window is not None:
        return SlidingWindowMLASpec(
            block_size=kind.block_tokens,
            num_kv_heads=1,
            head_size=width,
            dtype=dtype,
            page_size_padded=padded,
            sliding_window=kind.window,
            model_version=_MODEL_VERSION if kind.role is CacheRole.SLIDING_WINDOW else None,
        )
    return MLAAttentionSpec(
        block_size=kind.block_tokens,
        num_kv_heads=1,
        head_size=width,
        dtype=dtype,
        page_size_padded=padded,
        compress_ratio=kind.ratio,
        model_version=_MODEL_VERSION if kind.role is CacheRole.COMPRESSED else None,
    )


class PagedRowsBackend(AttentionBackend):
    """What vLLM must know to allocate caches of ``[blocks, rows, width]``."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_impl_cls() -> type:
        raise RuntimeError("paged row caches are read by their layer, not by an attention impl")

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        # Caches of several groups overlay one slab; splitting a block would misplace its rows.
        return [MultipleOf(1)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        return (num_blocks, block_size, num_kv_heads * head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (1, 0, 2, 3) if include_num_layers_dimension else (0, 1, 2)

    @classmethod
    def is_mla(cls) -> bool:
        return True


class KeyValueBackend(PagedRowsBackend):
    """What vLLM must know to allocate keys and values ``[2, blocks, rows, heads, width]``.

    All keys lie in front of all values, since torch_npu takes both as tensors without gaps.
    """

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (1, 0, 2, 3, 4, 5) if include_num_layers_dimension else (0, 1, 2, 3, 4)

    @classmethod
    def is_mla(cls) -> bool:
        return False
