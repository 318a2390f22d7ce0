"""The DSA attention backend and its metadata builder."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.step import StepLayout
from ascend_attention.vllm.compat import PagedRowsBackend
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata, build_metadata

_latest: StepLayout | None = None


def _step_layout(query_start: torch.Tensor, seq_lens: torch.Tensor) -> StepLayout:
    """The step's layout, built by the first of the builders that ask for the same batch."""
    global _latest
    latest = _latest
    if (
        latest is None
        or not torch.equal(latest.query_start, query_start)
        or not torch.equal(latest.seq_lens, seq_lens)
    ):
        latest = _latest = StepLayout.build(query_start, seq_lens)
    return latest


class AscendDSAMetadataBuilder(AttentionMetadataBuilder[AscendDSAMetadata]):
    """Turns the scheduler's ragged output into fixed indices, once per step and cache kind."""

    # Any query length is one code path, so decodes need not be sorted to the front.
    reorder_batch_threshold = None

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

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> AscendDSAMetadata:
        common = common_attn_metadata
        requests = common.num_reqs
        layout = _step_layout(
            common.query_start_loc_cpu[: requests + 1].long(),
            common.seq_lens[:requests].cpu().long(),
        )
        return build_metadata(
            self.kind, layout, common.block_table_tensor[:requests], common.slot_mapping
        )


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
