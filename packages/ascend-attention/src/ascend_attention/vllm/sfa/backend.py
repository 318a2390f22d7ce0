"""The backend of sparse latent attention and its metadata builder."""

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

from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.context_routes import routes_of
from ascend_attention.ops.token_indexer import owners
from ascend_attention.vllm.compat import PagedRowsBackend
from ascend_attention.vllm.context_parallel import known_lengths, own_rows
from ascend_attention.vllm.dsa.metadata import DeferredMetadata
from ascend_attention.vllm.sfa.metadata import AscendSFAMetadata, rows_of_slots


class AscendSFAMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Names the engine's own buffers, and computes from them on the device what is missing.

    The host is asked for bounds alone, so that no step waits for the device, whoever knows the
    context lengths.
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
        self.context: ContextParallel | None = layers[layer_names[0]].context
        self.max_context = vllm_config.model_config.max_model_len

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> DeferredMetadata[AscendSFAMetadata]:
        common = common_attn_metadata
        ends = common.query_start_loc[1 : common.num_reqs + 1]
        known = None if self.context is None else known_lengths(common)
        return self._deferred(common, lambda: ends.int(), common.max_seq_len, known)

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> DeferredMetadata[AscendSFAMetadata]:
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
        self,
        common: CommonAttentionMetadata,
        ends: Callable[[], torch.Tensor],
        most: int,
        known: tuple[list[int], list[int]] | None = None,
    ) -> DeferredMetadata[AscendSFAMetadata]:
        # vLLM changes its object between draft tokens, so it is read now.
        tokens, table = common.num_actual_tokens, common.block_table_tensor[: common.num_reqs]
        seq_lens, slots = common.seq_lens[: common.num_reqs], common.slot_mapping[:tokens]
        page, context = self.block_tokens, self.context
        ranks = 1 if context is None else context.shard.ranks
        most = min(most, self.max_context, table.shape[1] * page * ranks)

        def make() -> AscendSFAMetadata:
            blocks, last, lens = table.int(), ends(), seq_lens.int()
            if context is None:
                write = rows_of_slots(slots, page)
                return AscendSFAMetadata(tokens, blocks, last, lens, write, most)
            shard = context.shard
            request, seen = owners(last, lens, tokens)
            position = seen - 1
            write = own_rows(shard, request, position, blocks, slots, page)
            heads = ranks * context.num_heads
            routes = routes_of(shard, request, position, blocks, page, most, known, heads)
            return AscendSFAMetadata(tokens, blocks, last, lens, write, most, routes)

        return DeferredMetadata(make)


class AscendSFABackend(PagedRowsBackend):
    """Backend of the latents and indexer keys of sparse latent attention."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_SFA"

    @staticmethod
    def get_builder_cls() -> type[AscendSFAMetadataBuilder]:
        return AscendSFAMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.sfa.impl import AscendSFAImpl

        return AscendSFAImpl
