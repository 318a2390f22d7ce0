"""The DSA attention backend and its metadata builder."""

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

from ascend_attention.step import StepLayout, UniformLayout
from ascend_attention.vllm.compat import PagedRowsBackend
from ascend_attention.vllm.dsa.metadata import DeferredDSAMetadata, build_metadata

_latest: StepLayout | None = None


def _step_layout(
    query_start: torch.Tensor, seq_lens: torch.Tensor, device: torch.device
) -> StepLayout:
    """The step's layout, built by the first of the builders that ask for the same batch."""
    global _latest
    latest = _latest
    if (
        latest is None
        or latest.position.device != device
        or not torch.equal(latest.query_start, query_start)
        or not torch.equal(latest.seq_lens, seq_lens)
    ):
        latest = _latest = StepLayout.build(query_start, seq_lens, device)
    return latest


class AscendDSAMetadataBuilder(AttentionMetadataBuilder[DeferredDSAMetadata]):
    """Turns the scheduler's ragged output into fixed indices, once per step and cache kind."""

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
        self.kind = layers[layer_names[0]].kind
        self.max_context = vllm_config.model_config.max_model_len

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> DeferredDSAMetadata:
        return self._deferred(common_attn_metadata, lambda: self._layout(common_attn_metadata))

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> DeferredDSAMetadata:
        """Metadata that a graph computes from vLLM's own buffers, whatever a step puts there."""
        common = common_attn_metadata
        lens = common.seq_lens[: common.num_reqs]
        return self._deferred(
            common, lambda: UniformLayout(lens, common.max_query_len, self.max_context)
        )

    def _deferred(
        self, common: CommonAttentionMetadata, layout: Callable[[], StepLayout]
    ) -> DeferredDSAMetadata:
        table = common.block_table_tensor[: common.num_reqs]
        slots = common.slot_mapping
        return DeferredDSAMetadata(lambda: build_metadata(self.kind, layout(), table, slots))

    def _layout(self, common: CommonAttentionMetadata) -> StepLayout:
        requests = common.num_reqs
        query_start = common.query_start_loc_cpu[: requests + 1].long()
        seq_lens = common.seq_lens[:requests]
        if not seq_lens.is_cpu:
            # What the host knows is not fetched from the device. Between two draft tokens it does
            # not know how many drafts were accepted; a sliding window can do without.
            if common._seq_lens_cpu is not None:
                seq_lens = common._seq_lens_cpu[:requests]
            elif self.kind.compress_ratio == 0 and bool((query_start.diff() == 1).all()):
                return UniformLayout(seq_lens, 1, self.max_context)
        return _step_layout(query_start, seq_lens.cpu().long(), common.seq_lens.device)


class AscendDSABackend(PagedRowsBackend):
    """Backend of every DeepSeek-V4 cache."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_DSA"

    @staticmethod
    def get_builder_cls() -> type[AscendDSAMetadataBuilder]:
        return AscendDSAMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.dsa.impl import AscendDSAImpl

        return AscendDSAImpl
