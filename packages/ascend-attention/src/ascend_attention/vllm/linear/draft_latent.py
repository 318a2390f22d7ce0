"""Latent attention of a block draft beside recurrent states.

A block's queries see the whole context and one another, those behind them too. Operators over
latents let a token see every row up to a place, so that place is the block's end. Rows of a block
that passes the longest context end there, and see what lies in front of it.
"""

from __future__ import annotations

from typing import cast

import torch
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata

from ascend_attention.layers.mla import MLAQuery
from ascend_attention.ops.mla_cache import kv_rmsnorm_rope_cache
from ascend_attention.ops.mla_forward import mla_forward
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.step import StepLayout, UniformLayout
from ascend_attention.vllm.linear.latent import (
    AscendHybridMLABackend,
    AscendHybridMLACache,
    AscendHybridMLAMetadataBuilder,
)
from ascend_attention.vllm.mla.impl import AscendMLAImpl
from ascend_attention.vllm.mla.metadata import AscendMLAMetadata

__all__ = ["AscendDraftMLABackend", "AscendDraftMLACache", "AscendDraftMLAImpl"]


class AscendDraftMLAMetadataBuilder(AscendHybridMLAMetadataBuilder):
    """Metadata of blocks of as many queries for every request, made without the host's lengths."""

    def _layout(self, common: CommonAttentionMetadata) -> StepLayout:
        if common.causal:
            # The target's step, whose metadata the draft's layers do not read.
            return super()._layout(common)
        lens = common.seq_lens[: common.num_reqs]
        return UniformLayout(lens, common.max_query_len, self.max_context)


class AscendDraftMLABackend(AscendHybridMLABackend):
    """Backend of a block draft's latents."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_DRAFT_MLA"

    @staticmethod
    def get_builder_cls() -> type[AscendDraftMLAMetadataBuilder]:
        return AscendDraftMLAMetadataBuilder

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


class AscendDraftMLACache(AscendHybridMLACache):
    """Latents and rotated keys of context and blocks."""

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendDraftMLABackend


class AscendDraftMLAImpl(AscendMLAImpl):
    """Writes context and blocks, and lets a block's queries see all of both.

    Attributes:
        causal: they do not see those behind them.
    """

    causal = False

    def write_context(
        self, kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Cache rows that no query belongs to.

        Args:
            kv: ``[T, L + R]``, latent and shared key before norm and rotation.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
            slots: ``[T]`` int64; negative for rows that are not written.
        """
        weights, cache = self.weights, cast(AscendDraftMLACache, self.cache)
        rows = cache.latents.shape[1]
        block = torch.div(slots, rows, rounding_mode="floor")
        kv_rmsnorm_rope_cache(
            kv,
            weights.kv_a_norm,
            weights.shape.norm_eps,
            cos,
            sin,
            cache.latents,
            cache.ropes,
            RowIndex(block, slots - block * rows),
            interleaved=weights.shape.interleaved,
            split=weights.split,
        )

    def attend(self, query: MLAQuery, meta: AscendMLAMetadata) -> torch.Tensor:
        """``[T, h, V]`` of whole blocks, whose rows are cached already."""
        layout = meta.layout
        last = layout.position
        if not self.causal:
            # The last row that any query of the block sees is that of its end.
            last = (layout.seq_lens.to(last.device).long() - 1)[layout.request]
        return mla_forward(
            query.q_nope,
            query.q_rope,
            self.cache.latents,
            self.cache.ropes,
            self.weights.kv_b,
            meta.block_table,
            layout.request,
            last,
            self.weights.shape.scale,
            query_ends=(),
            seq_lens=(),
        )
