"""The MLA attention backend and its metadata builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.attention.backend import CommonAttentionMetadata

from ascend_attention.step import StepLayout
from ascend_attention.vllm.compat import PagedRowsBackend
from ascend_attention.vllm.dsa.backend import AscendDSAMetadataBuilder
from ascend_attention.vllm.dsa.metadata import DeferredMetadata
from ascend_attention.vllm.mla.metadata import AscendMLAMetadata, build_metadata


class AscendMLAMetadataBuilder(AscendDSAMetadataBuilder):
    """The layouts of DSA's builder, with the places of a cache that keeps a row for every token."""

    def _deferred(
        self, common: CommonAttentionMetadata, layout: Callable[[], StepLayout]
    ) -> DeferredMetadata[AscendMLAMetadata]:
        table = common.block_table_tensor[: common.num_reqs]
        slots, tokens = common.slot_mapping, self.kind.block_tokens
        return DeferredMetadata(lambda: build_metadata(layout(), table, slots, tokens))


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
