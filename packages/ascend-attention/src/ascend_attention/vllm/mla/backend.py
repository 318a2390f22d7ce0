"""The MLA attention backend and its metadata builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.context_routes import routes_of
from ascend_attention.step import StepLayout
from ascend_attention.vllm.compat import PagedRowsBackend
from ascend_attention.vllm.context_parallel import known_lengths, own_rows
from ascend_attention.vllm.dsa.backend import AscendDSAMetadataBuilder
from ascend_attention.vllm.dsa.metadata import DeferredMetadata
from ascend_attention.vllm.mla.metadata import AscendMLAMetadata, build_metadata


class AscendMLAMetadataBuilder(AscendDSAMetadataBuilder):
    """The layouts of DSA's builder, with the places of a cache that keeps a row for every token."""

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        self.context: ContextParallel | None = layers[layer_names[0]].context

    def _deferred(
        self, common: CommonAttentionMetadata, layout: Callable[[], StepLayout]
    ) -> DeferredMetadata[AscendMLAMetadata]:
        table = common.block_table_tensor[: common.num_reqs]
        slots, page, context = common.slot_mapping, self.kind.block_tokens, self.context
        if context is None:
            return DeferredMetadata(lambda: build_metadata(layout(), table, slots, page))
        known = known_lengths(common)
        return DeferredMetadata(lambda: _over_ranks(context, layout(), table, slots, page, known))


def _over_ranks(
    context: ContextParallel,
    layout: StepLayout,
    table: torch.Tensor,
    slots: torch.Tensor,
    page: int,
    known: tuple[Sequence[int], Sequence[int]] | None,
) -> AscendMLAMetadata:
    """Metadata where ranks share contexts; a layout that only the device knows sends queries."""
    shard, request, position = context.shard, layout.request, layout.position
    write = own_rows(shard, request, position, table, slots[: layout.num_tokens], page)
    routes = routes_of(
        shard,
        request,
        position,
        table,
        page,
        layout.longest_context,
        known if layout.known else None,
        shard.ranks * context.num_heads,
    )
    return AscendMLAMetadata(layout, table, write, routes)


class AscendMLABackend(PagedRowsBackend):
    """Backend of caches that keep a row for every token."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_MLA"

    @staticmethod
    def get_builder_cls() -> type[AscendMLAMetadataBuilder]:
        return AscendMLAMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.mla.impl import AscendMLAImpl

        return AscendMLAImpl
