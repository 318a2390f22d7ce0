"""The backends of block-sparse attention and their metadata builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.ops.token_indexer import owners
from ascend_attention.vllm.compat import KeyValueBackend, PagedRowsBackend
from ascend_attention.vllm.dsa.metadata import DeferredMetadata
from ascend_attention.vllm.msa.metadata import AscendMiniMaxM3Metadata
from ascend_attention.vllm.sfa.backend import AscendSFAMetadataBuilder


class AscendMiniMaxM3MetadataBuilder(AscendSFAMetadataBuilder):
    """SFA's builder, with the request and position of every query.

    Prefills and decodes are one code path: an operator is told of each query where it stands.
    """

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.decode_queries = 1 + vllm_config.num_speculative_tokens

    def _deferred(
        self, common: CommonAttentionMetadata, ends: Callable[[], torch.Tensor], most: int
    ) -> DeferredMetadata[Any]:
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
