"""The attention backend of ordinary models and its metadata builder."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.step import UniformLayout
from ascend_attention.vllm.dense.metadata import (
    AscendAttentionMetadata,
    build_metadata,
    build_uniform_metadata,
)
from ascend_attention.vllm.dsa.metadata import DeferredMetadata

BLOCK_TOKENS = 128
"""Blocks are multiples of it: torch_npu's operator reads no smaller ones for several tokens."""


class AscendAttentionMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Turns the scheduler's ragged output into indices, when the first layer asks for them."""

    # Any query length is one code path, so decodes need not be sorted to the front.
    reorder_batch_threshold = None
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.max_context = vllm_config.model_config.max_model_len

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> DeferredMetadata[AscendAttentionMetadata]:
        common, requests = common_attn_metadata, common_attn_metadata.num_reqs
        known = common._seq_lens_cpu
        return DeferredMetadata(
            lambda: build_metadata(
                common.query_start_loc_cpu[: requests + 1],
                common.seq_lens[:requests],
                None if known is None else known[:requests],
                common.block_table_tensor[:requests],
                common.slot_mapping,
                bool(common.causal),
            )
        )

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> DeferredMetadata[AscendAttentionMetadata]:
        """Metadata that a graph computes from vLLM's own buffers, whatever a step puts there."""
        common, requests = common_attn_metadata, common_attn_metadata.num_reqs
        return DeferredMetadata(
            lambda: build_uniform_metadata(
                UniformLayout(common.seq_lens[:requests], common.max_query_len, self.max_context),
                common.block_table_tensor[:requests],
                common.slot_mapping,
            )
        )


class AscendAttentionBackend(AttentionBackend):
    """Attention over caches of keys and values, each in blocks of whole tokens."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        """The name by which vLLM knows a backend that is not its own."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.dense.impl import AscendAttentionBackendImpl

        return AscendAttentionBackendImpl

    @staticmethod
    def get_builder_cls() -> type[AscendAttentionMetadataBuilder]:
        return AscendAttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(BLOCK_TOKENS)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


class AscendPackedAttentionBackend(AscendAttentionBackend):
    """The same where a block of vLLM's pool holds the rows of several layers.

    A layer's keys of a block lie in front of its values of that block. Seen as ``[2, blocks, ...]``
    neither is without gaps, which torch_npu's operators refuse and the kernels take.
    """

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        return (num_blocks, 2, block_size, num_kv_heads, head_size)
