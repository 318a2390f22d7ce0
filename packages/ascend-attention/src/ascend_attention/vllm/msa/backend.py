"""The backends of block-sparse attention and their metadata builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.ops.token_indexer import owners
from ascend_attention.vllm.compat import KeyValueBackend, PagedRowsBackend
from ascend_attention.vllm.dsa.metadata import DeferredMetadata
from ascend_attention.vllm.msa.metadata import AscendMiniMaxM3Metadata


class AscendMiniMaxM3MetadataBuilder(AttentionMetadataBuilder[Any]):
    """Names the engine's own buffers, and the request and position of every query.

    Prefills and decodes are one code path. The host is asked for bounds alone, so that no step
    waits for the device, whoever knows the context lengths.
    """

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
        layers = vllm_config.compilation_config.static_forward_context
        self.block_tokens: int = layers[layer_names[0]].kind.block_tokens
        self.max_context = vllm_config.model_config.max_model_len
        self.decode_queries = 1 + vllm_config.num_speculative_tokens

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> DeferredMetadata[AscendMiniMaxM3Metadata]:
        common = common_attn_metadata
        ends = common.query_start_loc[1 : common.num_reqs + 1]
        return self._deferred(common, lambda: ends.int(), common.max_seq_len)

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> DeferredMetadata[AscendMiniMaxM3Metadata]:
        """Metadata that a graph computes from vLLM's own buffers, whatever a step puts there.

        Every request of a captured step has the same number of queries; those of a request
        without context see nothing and write nothing.
        """
        requests, each = common_attn_metadata.num_reqs, common_attn_metadata.max_query_len
        device = common_attn_metadata.seq_lens.device

        def ends() -> torch.Tensor:
            return each * torch.arange(1, requests + 1, dtype=torch.int32, device=device)

        return self._deferred(common_attn_metadata, ends, self.max_context)

    def _deferred(
        self, common: CommonAttentionMetadata, ends: Callable[[], torch.Tensor], most: int
    ) -> DeferredMetadata[AscendMiniMaxM3Metadata]:
        # vLLM changes its object between draft tokens, so it is read now.
        tokens, table = common.num_actual_tokens, common.block_table_tensor[: common.num_reqs]
        seq_lens, slots = common.seq_lens[: common.num_reqs], common.slot_mapping[:tokens]
        most = min(most, self.max_context, table.shape[1] * self.block_tokens)
        decodes = common.max_query_len <= self.decode_queries

        def make() -> AscendMiniMaxM3Metadata:
            request, seen = owners(ends(), seq_lens.int(), tokens)
            return AscendMiniMaxM3Metadata(
                tokens, table.int(), request, seen - 1, slots, most, self.block_tokens, decodes
            )

        return DeferredMetadata(make)


class AscendMiniMaxM3SparseBackend(KeyValueBackend):
    """Backend of keys and values."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_MINIMAX_M3_SPARSE"

    @staticmethod
    def get_builder_cls() -> type[AscendMiniMaxM3MetadataBuilder]:
        return AscendMiniMaxM3MetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.msa.impl import AscendMiniMaxM3SparseImpl

        return AscendMiniMaxM3SparseImpl


class AscendMiniMaxM3IndexerBackend(PagedRowsBackend):
    """Backend of index keys."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_MINIMAX_M3_INDEXER"

    @staticmethod
    def get_builder_cls() -> type[AscendMiniMaxM3MetadataBuilder]:
        return AscendMiniMaxM3MetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.msa.indexer import AscendMiniMaxM3IndexerImpl

        return AscendMiniMaxM3IndexerImpl
